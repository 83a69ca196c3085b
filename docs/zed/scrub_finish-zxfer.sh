#!/bin/sh
#
# After a scrub that found errors in a pool, start zxfer-heal@POOL.service. zed runs this script
# as root (docs/howto/heal.md). zed kills a script after ten seconds, and waits for it before it
# handles the next event, so a service does the work.
#
# Exit codes: 0 started, 1 not started, 3 no errors, 9 not called by zed.

[ "${ZEVENT_SUBCLASS-}" = scrub_finish ] && [ -n "${ZEVENT_POOL-}" ] || exit 9

# zxfer would take the part before a colon as the name of a host.
case $ZEVENT_POOL in
*:*)
	logger -t zxfer-heal -- "pool $ZEVENT_POOL is not healed, because its name has a colon"
	exit 1
	;;
esac

LC_ALL=C "${ZPOOL:-zpool}" status -- "$ZEVENT_POOL" | grep -qx 'errors: No known data errors' && exit 3

systemctl start --no-block -- "$(systemd-escape --template=zxfer-heal@.service -- "$ZEVENT_POOL")" || exit 1
