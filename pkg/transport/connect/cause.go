package connect

import (
	"context"
	"errors"

	"zxfer/pkg/hosts"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// rootCause picks, of both ends' errors, the one that explains the other: an
// end's own failure before what it heard from its peer, before a cut.
func rootCause(send, receive error) error {
	switch {
	case send == nil:
		return receive
	case receive == nil:
		return send
	// Who listened is gone: that is why it could not be dialled.
	case errors.Is(send, tcp.ErrDial) && errors.Is(receive, hosts.ErrLost):
		return receive
	case errors.Is(receive, tcp.ErrDial) && errors.Is(send, hosts.ErrLost):
		return send
	case errors.Is(receive, &zfs.Error{Kind: zfs.Unplanned}) && echo(send) == 0:
		return hosts.JoinCause(send, receive)
	case echo(receive) < echo(send):
		return receive
	}
	return send
}

// echo ranks errors: the higher, the more likely it only mirrors another.
func echo(err error) int {
	switch {
	case errors.Is(err, tcp.ErrTampered):
		return 0
	case errors.Is(err, context.Canceled):
		return 5
	case errors.Is(err, tcp.ErrCut):
		return 3
	case errors.As(err, new(*transfer.PeerError)):
		return 2
	case errors.Is(err, hosts.ErrLost):
		return 1
	}
	return 0
}
