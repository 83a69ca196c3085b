package transport

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"zxfer/pkg/option"
	"zxfer/pkg/size"
)

// Settings describe how data moves between two hosts. The zero value leaves everything to
// zxfer. The TOML tags are keys of a job file's [job.transfer].
type Settings struct {
	Wire        string `toml:"wire,omitempty"`         // auto, signed, tls, plain, ssh, nc; "" = auto
	TrustedLink bool   `toml:"trusted_link,omitempty"` // consent to plain and nc
	Streams     int    `toml:"streams,omitempty"`      // TCP connections, 0 = chosen
	Dial        string `toml:"dial,omitempty"`         // auto, source, target; "" = auto
	DataAddress string `toml:"data_address,omitempty"` // of the listening host
	Ports       Ports  `toml:"ports,omitempty"`        // of the listening host
	Socket

	Compress        string    `toml:"compress,omitempty"` // auto, zstd[:N], off; "" = auto
	CompressThreads int       `toml:"compress_threads,omitempty"`
	Buffer          size.Size `toml:"buffer,omitempty"` // bytes on each side, 0 = chosen

	RSH         string `toml:"rsh,omitempty"`          // remote shell command, "" = ssh
	NoBootstrap bool   `toml:"no_bootstrap,omitempty"` // do not copy zxfer to a host that lacks it

	// Bandwidth limits all streams to a target together, in bytes per second; 0 = no limit.
	Bandwidth size.Size `toml:"bandwidth,omitempty"`
	// BandwidthWindows override Bandwidth at times of the day. The first matching window
	// applies. A stream keeps the limit that it started with.
	BandwidthWindows []BandwidthWindow `toml:"bandwidth_window,omitempty"`
}

// Socket holds the options of every data socket at both ends. Offers and tickets carry it.
type Socket struct {
	// Window is SO_RCVBUF and SO_SNDBUF in bytes; 0 = the kernel's autotuning.
	Window size.Size `json:"window,omitempty" toml:"window,omitempty"`
	// Congestion is TCP_CONGESTION; "" = the kernel's default.
	Congestion string `json:"congestion,omitempty" toml:"congestion,omitempty"`
}

// Words of Wire. The modes "signed" and "tls" of package tcp are also valid.
const (
	Auto  = "auto"  // signed for raw streams of encrypted data, tls otherwise
	Plain = "plain" // only connections are authenticated
	SSH   = "ssh"   // through the ssh connection
	NC    = "nc"    // with nc on a host without zxfer

	off = "off" // of Compress
)

// Place is a set of places where an option may be written.
type Place uint

const (
	Send Place = 1 << iota
	Dev
	Doctor
	JobFile
	Query // commands that only query hosts

	everywhere = Send | Dev | Doctor | JobFile
)

// Option is one option of Settings. The table holds everything about it, including its help.
type Option struct {
	ID     string // its flag
	Short  string // its flag's letter, or ""
	Key    string // key in the transfer table of a job file: the tag of its field
	Places Place
	Usage  string // help of the flag: a verb phrase, with the placeholder in backquotes
	// IneffectiveIf holds the cases in which the option has no effect and is refused.
	IneffectiveIf Condition
	Words         []Word // words that it accepts, the default first; not all of them if value is set
	word          func(*Settings) *string
	value         func(*Settings) option.Value // used if word is nil
}

// Word is a word that an option accepts.
type Word struct {
	Name, Meaning string // Meaning may name other options, which are still to be expanded
	excludedAt    Place  // places that do not accept it
}

const (
	maxStreams = 64
	maxThreads = 1024
)

// Options returns the options of some places.
func Options(at Place) []Option {
	all := slices.Concat(connectionOptions(), flowOptions(), socketOptions(), remoteShellOptions())
	all = slices.DeleteFunc(all, func(o Option) bool { return o.Places&at == 0 })
	for i := range all {
		all[i].Words = slices.DeleteFunc(all[i].Words, func(w Word) bool { return w.excludedAt&at == at })
	}
	return all
}

func init() {
	for _, o := range Options(everywhere) {
		option.Declare(o.ID)
	}
}

// connectionOptions returns the options for making connections.
func connectionOptions() []Option {
	return []Option{
		{
			ID: "wire", Key: "wire", Places: everywhere, IneffectiveIf: OneHost | NothingMoved,
			Usage: "send data over `WIRE`",
			word:  func(w *Settings) *string { return &w.Wire },
			Words: []Word{
				{Name: Auto, Meaning: "signed if raw encrypted, else tls; ssh if small or blocked"},
				{Name: "signed", Meaning: "authenticates every frame, encrypts nothing"},
				{Name: "tls", Meaning: "encrypts and authenticates"},
				{Name: Plain, Meaning: "authenticates only connections; needs {{trusted-link}}"},
				{Name: SSH, Meaning: "sends data through ssh: slower, needs no port"},
				{Name: NC, Meaning: "uses nc, for hosts without zxfer; needs {{trusted-link}}", excludedAt: Dev},
			},
		}, {
			ID: "trusted-link", Key: "trusted_link", Places: everywhere, IneffectiveIf: OneHost | NothingMoved,
			Usage: "allow wires plain and nc; attackers can read and change data",
			value: func(w *Settings) option.Value { return option.Bool(&w.TrustedLink) },
		}, {
			ID: "streams", Key: "streams", Places: everywhere, IneffectiveIf: OneHost | NothingMoved | ByNC,
			Usage: "use `N` connections, 1 to 64 (default automatic)",
			value: func(w *Settings) option.Value { return option.Count(&w.Streams, 1, maxStreams) },
		}, {
			ID: "dial", Key: "dial", Places: everywhere, IneffectiveIf: OneHost | NothingMoved | OverSSH | ByNC,
			Usage: "choose the `SIDE` that opens connections", word: func(w *Settings) *string { return &w.Dial },
			Words: []Word{
				{Name: Auto, Meaning: "this host or the source; the other side if that fails"},
				{Name: "source", Meaning: "the source connects to the target"},
				{Name: "target", Meaning: "the target connects to the source"},
			},
		}, {
			ID: "data-address", Key: "data_address", Places: everywhere, IneffectiveIf: OneHost | NothingMoved | OverSSH,
			Usage: "listen on IP address `ADDR` (default ssh address)",
			value: func(w *Settings) option.Value { return option.Text(&w.DataAddress, "ADDR", isAddress) },
		}, {
			ID: "port-range", Key: "ports", Places: everywhere, IneffectiveIf: OneHost | NothingMoved | OverSSH,
			Usage: "listen on a port in `LOW-HIGH` (default any)",
			value: func(w *Settings) option.Value { return option.Parsed(&w.Ports, "LOW-HIGH") },
		},
	}
}

// flowOptions returns the options for data at both ends.
func flowOptions() []Option {
	return []Option{
		{
			ID: "buffer", Key: "buffer", Places: Send | Dev | JobFile,
			Usage: "buffer at most `SIZE` per stream and host (default 256MiB, devices 16MiB)",
			value: func(w *Settings) option.Value { return option.Size(&w.Buffer, size.Max) },
		}, {
			ID: "bwlimit", Key: "bandwidth", Places: everywhere, IneffectiveIf: NothingMoved,
			Usage: "limit the total rate to `RATE` bytes per second, such as 100MiB",
			value: func(w *Settings) option.Value { return option.Rate(&w.Bandwidth) },
		}, {
			ID: "compress", Key: "compress", Places: Send | Dev | JobFile, IneffectiveIf: OneHost | NothingMoved | ByNC,
			Usage: "compress data by `MODE`",
			Words: []Word{
				{Name: Auto, Meaning: "adapts to data and link; skips raw encrypted streams"},
				{Name: "zstd", Meaning: "always compresses; zstd:N sets the level, 1 to 19"},
				{Name: off, Meaning: "never compresses"},
			},
			value: func(w *Settings) option.Value { return compressionValue(&w.Compress) },
		}, {
			ID: "compress-threads", Key: "compress_threads", Places: Send | Dev | JobFile, IneffectiveIf: OneHost | NothingMoved | ByNC | Uncompressed,
			Usage: "compress on at most `N` cores (default all)",
			value: func(w *Settings) option.Value { return option.Count(&w.CompressThreads, 1, maxThreads) },
		},
	}
}

// RSHHelp is the help of every flag for the remote shell.
const RSHHelp = "use remote shell `COMMAND` (default $ZXFER_RSH, or ssh)"

// remoteShellOptions returns the options for reaching remote hosts.
func remoteShellOptions() []Option {
	return []Option{
		{
			ID: "rsh", Short: "e", Key: "rsh", Places: everywhere | Query, IneffectiveIf: NoRemoteHost,
			Usage: RSHHelp,
			value: func(w *Settings) option.Value { return option.Text(&w.RSH, "COMMAND", isCommand) },
		}, {
			ID: "no-bootstrap", Key: "no_bootstrap", Places: everywhere | Query, IneffectiveIf: NoRemoteHost | ByNC,
			Usage: "do not copy zxfer to a host that lacks it",
			value: func(w *Settings) option.Value { return option.Bool(&w.NoBootstrap) },
		},
	}
}

// Value returns the option's variable in w.
func (o *Option) Value(w *Settings) option.Value {
	if o.word == nil {
		return o.value(w)
	}
	var words []string
	for _, w := range o.Words {
		words = append(words, w.Name)
	}
	return option.Word(o.word(w), words...)
}

// Help returns the option's help with the meanings of its words. Names of other options in it are
// still to be expanded.
func (o *Option) Help() string {
	text := strings.ReplaceAll(o.Usage, "`", "")
	words := make([]string, len(o.Words))
	for i, w := range o.Words {
		words[i] = w.Name + " (" + w.Meaning + ")"
	}
	if len(words) > 0 {
		text += ": " + strings.Join(words, ", ")
	}
	return text
}

// given returns the option's value, or "" if it is the default.
func (o *Option) given(w *Settings) string {
	if s := o.Value(w).String(); s != o.Value(&Settings{}).String() {
		return s
	}
	return ""
}

// Levels of zstd(1) without --ultra.
const minZstd, maxZstd = 1, 19

// compressionValue accepts auto, off, zstd and zstd:LEVEL.
func compressionValue(p *string) option.Value {
	return option.New("auto|zstd[:N]|off", func() string { return cmp.Or(*p, Auto) }, func(s string) error {
		level, isLevel := strings.CutPrefix(s, "zstd:")
		switch n, err := strconv.Atoi(level); {
		case isLevel && (err != nil || n < minZstd || n > maxZstd):
			return fmt.Errorf("the level must be a whole number from %d to %d", minZstd, maxZstd)
		case !isLevel && s != Auto && s != off && s != "zstd":
			return fmt.Errorf("write auto, off, zstd or zstd:N with N from %d to %d", minZstd, maxZstd)
		}
		*p = s
		return nil
	})
}

func isAddress(s string) error {
	if _, err := netip.ParseAddr(s); err != nil {
		return errors.New("must be an IP address of the host that listens")
	}
	return nil
}

func isCommand(s string) error {
	if strings.TrimSpace(s) == "" {
		return errors.New("must name a command")
	}
	return nil
}

// maxWindow is the largest value of SO_SNDBUF and SO_RCVBUF that the kernel can double without
// overflow.
const maxWindow = 1<<30 - 1

// socketOptions returns the options of Socket.
func socketOptions() []Option {
	return []Option{
		{
			ID: "window", Key: "window", Places: everywhere, IneffectiveIf: OneHost | NothingMoved | OverSSH,
			Usage: "use socket buffers of `SIZE` (default automatic)",
			value: func(w *Settings) option.Value { return option.Size(&w.Window, maxWindow) },
		}, {
			ID: "congestion", Key: "congestion", Places: everywhere, IneffectiveIf: OneHost | NothingMoved | OverSSH | ByNC,
			Usage: "use TCP congestion control `NAME`, such as bbr (default auto)",
			Words: []Word{{Name: Auto, Meaning: "kernel setting; bbr if a long link loses packets"}},
			value: func(w *Settings) option.Value { return congestionValue(&w.Congestion) },
		},
	}
}

// congestionValue accepts the name of an algorithm, and auto for "".
func congestionValue(p *string) option.Value {
	return option.New("NAME|auto", func() string { return *p }, func(s string) error {
		if !regexp.MustCompile(`^[a-z0-9_-]{1,15}$`).MatchString(s) {
			return errors.New("write auto, or the name of an algorithm, such as bbr")
		}
		if *p = s; s == Auto {
			*p = ""
		}
		return nil
	})
}
