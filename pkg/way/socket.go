package way

import (
	"zxfer/pkg/option"
	"zxfer/pkg/size"
)

// Socket is what is asked of every data socket, on both ends: offers and tickets
// carry it.
type Socket struct {
	// Window is SO_RCVBUF and SO_SNDBUF in bytes; 0 = the kernel's autotuning.
	Window size.Size `json:"window,omitempty" toml:"window,omitempty"`
}

// maxWindow is the largest value of SO_SNDBUF and SO_RCVBUF that the kernel can
// double without overflow.
const maxWindow = 1<<30 - 1

// sockets are the options of Socket.
func sockets() []Option {
	return []Option{
		{
			ID: "window", Key: "window", At: everywhere, Idle: OneHost | Still | OverSSH,
			help:  "socket buffers of this size instead of the kernel's autotuning",
			value: func(w *Way) option.Value { return option.Size(&w.Window, maxWindow) },
		},
	}
}
