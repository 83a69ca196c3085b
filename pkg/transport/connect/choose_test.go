package connect

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/transport"
)

func TestChoose(t *testing.T) {
	t.Parallel()
	reached := func(local, peer string) hosts.Facts { return hosts.Facts{SSHLocal: local, SSHPeer: peer} }
	tests := []struct {
		name                string
		way                 transport.Settings
		source, target      string
		sf, tf              hosts.Facts
		dial, address, peer string
		wire                string
		class               fault.Class
	}{
		{name: "push: the target listens where ssh reached it", source: "", target: "b", tf: reached("10.0.0.2", "10.0.0.1"),
			dial: "source", address: "10.0.0.2", peer: "10.0.0.1", wire: "auto"},
		{name: "pull: the source listens, the only known path", source: "a", target: "", sf: reached("10.0.0.2", "10.0.0.1"),
			dial: "target", address: "10.0.0.2", peer: "10.0.0.1", wire: "auto"},
		{name: "third party: the target listens, any peer", source: "a", target: "b",
			sf: reached("10.0.0.2", "10.0.0.1"), tf: reached("10.0.0.3", "10.0.0.1"), dial: "source", address: "10.0.0.3", wire: "auto"},
		{name: "push reversed: this host listens", way: transport.Settings{Dial: "target"}, source: "", target: "b", tf: reached("10.0.0.2", "10.0.0.1"),
			dial: "target", address: "10.0.0.1", peer: "10.0.0.2", wire: "auto"},
		{name: "requested address, any peer", way: transport.Settings{DataAddress: "192.168.7.2"}, source: "", target: "b",
			tf: reached("10.0.0.2", "10.0.0.1"), dial: "source", address: "192.168.7.2", wire: "auto"},
		{name: "through ssh: loopback", way: transport.Settings{Wire: "ssh"}, source: "", target: "b", dial: "source", address: "127.0.0.1", wire: "ssh"},
		{name: "through ssh between two other hosts", way: transport.Settings{Wire: "ssh"}, source: "a", target: "b", class: fault.Usage},
		{name: "plain tools, push: this host listens", way: transport.Settings{Wire: "nc"}, source: "", target: "b", tf: reached("10.0.0.2", "10.0.0.1"),
			dial: "target", address: "10.0.0.1", peer: "10.0.0.2", wire: "nc"},
		{name: "plain tools, pull: this host listens", way: transport.Settings{Wire: "nc"}, source: "b", target: "", sf: reached("10.0.0.2", "10.0.0.1"),
			dial: "source", address: "10.0.0.1", peer: "10.0.0.2", wire: "nc"},
		{name: "plain tools between two other hosts", way: transport.Settings{Wire: "nc"}, source: "a", target: "b", class: fault.Usage},
		{name: "no address known: through ssh", source: "", target: "b", dial: "source", address: "127.0.0.1", wire: "ssh"},
		{name: "no address known of others", source: "a", target: "b", class: fault.Refused},
		{name: "no address known, requested direction", way: transport.Settings{Dial: "source"}, source: "", target: "b", class: fault.Refused},
		{name: "a jump host of ssh: data may come from elsewhere", source: "", target: "b", tf: reached("10.0.0.2", "10.9.9.9"),
			dial: "source", address: "10.0.0.2", wire: "auto"},
		{name: "a jump host of ssh does not listen for this one", way: transport.Settings{Dial: "target"}, source: "", target: "b", tf: reached("10.0.0.2", "10.9.9.9"), class: fault.Refused},
		{name: "invalid address", way: transport.Settings{DataAddress: "beta"}, source: "", target: "b", class: fault.Usage},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			source, target := side(tt.source, tt.sf), side(tt.target, tt.tf)
			for _, s := range []*Side{&source, &target} {
				if s.Local() {
					s.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.1")}
				}
			}
			search, err := NewSearch(tt.way, source, target, nil)
			if tt.class != 0 {
				require.Error(t, err)
				require.Equal(t, tt.class, fault.ClassOf(err))
				return
			}
			require.NoError(t, err)
			l := search.First()
			dialer, listener := source.Host, target.Host
			if tt.dial == "target" {
				dialer, listener = listener, dialer
			}
			require.Same(t, dialer, l.dialer)
			require.Same(t, listener, l.listener)
			require.Equal(t, []string{tt.dial, tt.address, tt.peer, tt.wire}, []string{l.dial, l.address, l.peer, l.Wire})
		})
	}
	t.Run("one host needs no network", func(t *testing.T) {
		t.Parallel()
		both := side("", hosts.Facts{})
		l := mustChoose(t, transport.Settings{Wire: "tls", Ports: transport.Ports{Low: 1, High: 2}}, both, both)
		require.Equal(t, Report{Mode: Local, Why: "source and target are on the same host"}, l.Report(true, true))
	})
}

// TestLoopbackAddressIsRefused expects that loopback is refused as the address of a
// host, because every dialer would connect to itself.
func TestLoopbackAddressIsRefused(t *testing.T) {
	t.Parallel()
	local := side("", hosts.Facts{Boot: "1"})
	for _, address := range []string{"127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"} {
		remote := hosts.Facts{SSHLocal: address, SSHPeer: address, Boot: "2"}
		for _, dial := range []string{"source", "target"} {
			_, err := NewSearch(transport.Settings{Dial: dial}, local, side("beta", remote), nil)
			require.Equal(t, fault.Refused, fault.ClassOf(err), address)
			require.ErrorContains(t, err, address, dial)
		}
		l, err := NewSearch(transport.Settings{}, local, side("beta", remote), nil)
		require.NoError(t, err, address)
		require.Equal(t, "ssh", l.First().Wire, "which leads there")
		_, err = NewSearch(transport.Settings{DataAddress: address}, local, side("beta", remote), nil)
		require.NoError(t, err, "requested: a tunnel")
		remote.Boot = "1"
		_, err = NewSearch(transport.Settings{}, local, side("beta", remote), nil)
		require.NoError(t, err, "another container of this machine")
	}
}
