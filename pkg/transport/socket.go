package transport

import (
	"errors"
	"regexp"

	"zxfer/pkg/option"
	"zxfer/pkg/size"
)

// Socket is what is asked of every data socket, on both ends: offers and tickets
// carry it.
type Socket struct {
	// Window is SO_RCVBUF and SO_SNDBUF in bytes; 0 = the kernel's autotuning.
	Window size.Size `json:"window,omitempty" toml:"window,omitempty"`
	// Congestion is TCP_CONGESTION; "" = the kernel's default.
	Congestion string `json:"congestion,omitempty" toml:"congestion,omitempty"`
}

// maxWindow is the largest value of SO_SNDBUF and SO_RCVBUF that the kernel can
// double without overflow.
const maxWindow = 1<<30 - 1

// sockets are the options of Socket.
func sockets() []Option {
	return []Option{
		{
			ID: "window", Key: "window", Places: everywhere, IneffectiveIf: OneHost | NothingMoved | OverSSH,
			help:  "socket buffers of this size instead of the kernel's autotuning",
			value: func(w *Settings) option.Value { return option.Size(&w.Window, maxWindow) },
		}, {
			ID: "congestion", Key: "congestion", Places: everywhere, IneffectiveIf: OneHost | NothingMoved | OverSSH | ByNC,
			help:  "TCP's congestion control on both ends, such as cubic, where both kernels have it; auto: as each kernel is set, and where the sending one has cubic or reno and also bbr, that, once a long line loses more than one of 300 packets",
			value: func(w *Settings) option.Value { return algorithm(&w.Congestion) },
		},
	}
}

// algorithm is the name of one that a kernel may have; auto is none.
func algorithm(p *string) option.Value {
	return option.Of("NAME|auto", func() string { return *p }, func(s string) error {
		if !regexp.MustCompile(`^[a-z0-9_-]{1,15}$`).MatchString(s) {
			return errors.New("write auto, or the name of an algorithm, such as bbr")
		}
		if *p = s; s == Auto {
			*p = ""
		}
		return nil
	})
}
