package preflight

import (
	"fmt"
	"strings"
)

// Page is the reference of all checks, as Markdown.
func Page() string {
	var b strings.Builder
	b.WriteString(`# Checks

<!-- Made by: UPDATE_GOLDEN=1 go test ./cmd/zxfer -run TestChecksAreDocumented -->

` + "`zxfer doctor`" + ` evaluates all of them; ` + "`zxfer send`" + ` and ` + "`zxfer dev`" + ` those that
concern them, before they change anything: a finding at level fail stops them,
unless ` + "`--skip-check ID`" + ` passes over it. Levels are ok, note, warn and fail.

| id | what holds where it finds nothing | reads | source of its rule |
|---|---|---|---|
`)
	for _, c := range Checks() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | [link](%s) |\n", c.ID, c.Title, c.Needs, c.Docs)
	}
	b.WriteString("| `link` | The network carries what the hosts could move | TCP_INFO of a measured link | [link](https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/tcp.h) |\n")
	b.WriteString("| `mtu` | Packets of the interfaces' size pass unfragmented | TCP_INFO of a measured link, the interfaces' MTU | [link](https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/tcp.h) |\n")
	b.WriteString("| `target-key-changed` | The copy's encryption root is still one whose key the source's is (`send`, `replicate`) | zfs get encryptionroot,keyformat,pbkdf2salt | [link](https://github.com/openzfs/zfs/issues/12614) |\n")
	b.WriteString("| `plan` | A way from the source's state to the target's exists | both listings | [link](https://openzfs.github.io/openzfs-docs/man/v2.3/8/zfs-send.8.html) |\n")
	return b.String()
}
