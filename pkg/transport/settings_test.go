package transport

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/option"
	"zxfer/pkg/size"
)

func TestCompression(t *testing.T) {
	t.Parallel()
	var c string
	z := compressionValue(&c)
	for _, s := range []string{"auto", "off", "zstd", "zstd:1", "zstd:19"} {
		require.NoError(t, z.Set(s))
		require.Equal(t, s, c)
	}
	for _, s := range []string{"", "on", "zstd:", "zstd:0", "zstd:20", "zstd:x", "lz4"} {
		require.Error(t, z.Set(s), "%q", s)
	}
}

// TestOptionTableIsComplete expects that the key of an option is its field's TOML tag, and that
// every field has an option.
func TestOptionTableIsComplete(t *testing.T) {
	t.Parallel()
	keys, ids := map[string]bool{"bandwidth_window": true}, map[string]bool{}
	for _, o := range Options(everywhere) {
		require.False(t, ids[o.ID], o.ID)
		ids[o.ID] = true
		require.Equal(t, o.Places&JobFile != 0, o.Key != "", o.ID)
		keys[o.Key] = true
		require.NotEmpty(t, o.Usage, o.ID)
		option.Expand(o.Help(), func(id, _ string) string { require.Equal(t, "trusted-link", id); return id })
		var w Settings
		before := o.Value(&w).String()
		require.Empty(t, o.given(&w), o.ID)
		for _, s := range []string{"1", "true", "10.0.0.1", "zstd", "source", "tls"} {
			if o.Value(&w).Set(s) == nil && o.Value(&w).String() != before {
				break
			}
		}
		require.NotEmpty(t, o.given(&w), o.ID)
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Settings]()) {
		key, _, _ := strings.Cut(f.Tag.Get("toml"), ",")
		require.True(t, f.Anonymous || key == "-" || keys[key], "no option sets %s", f.Name)
		delete(keys, key)
	}
	delete(keys, "")
	require.Empty(t, keys, "no field has this key")
}

func TestFaults(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		way  Settings
		at   Place
		want []string
	}{
		"nothing":                      {Settings{}, Send, nil},
		"consent":                      {Settings{Wire: Plain, TrustedLink: true, Streams: 2}, Send, nil},
		"no consent":                   {Settings{Wire: Plain}, JobFile, []string{"{{wire plain}} requires {{trusted-link}}: data is neither encrypted nor authenticated"}},
		"no consent for a measurement": {Settings{Wire: Plain}, Doctor, nil},
		"consent without plain":        {Settings{TrustedLink: true}, Send, []string{"{{trusted-link}} has no effect without {{wire plain}} or {{wire nc}}"}},
		"out of bounds":                {Settings{Streams: 65, CompressThreads: -1}, JobFile, []string{"{{streams 65}}: must be a whole number from 1 to 64", "{{compress-threads -1}}: must be a whole number from 1 to 1024"}},
		"words":                        {Settings{Wire: "udp", DataAddress: "b"}, JobFile, []string{"{{wire udp}}: choose one of auto, signed, tls, plain, ssh, nc", "{{data-address b}}: must be an IP address of the host that listens"}},
		"congestion of ssh":            {Settings{Wire: SSH, Socket: Socket{Congestion: "bbr"}}, Doctor, []string{"{{congestion}} has no effect with {{wire ssh}}, which sends data through the remote shell"}},
		"ssh": {Settings{Wire: SSH, Dial: "source", Ports: Ports{1024, 2048}}, JobFile, []string{
			"{{dial}} has no effect with {{wire ssh}}, which sends data through the remote shell", "{{port-range}} has no effect with {{wire ssh}}, which sends data through the remote shell"}},
		"nc":                    {Settings{Wire: NC, TrustedLink: true, Streams: 2}, Send, []string{"{{streams}} has no effect with {{wire nc}}, which uses no zxfer on the remote host"}},
		"nothing is compressed": {Settings{Compress: "off", CompressThreads: 2}, Dev, []string{"{{compress-threads}} has no effect with {{compress off}}"}},
	} {
		var got []string
		for _, err := range c.way.Check(c.at) {
			require.Equal(t, fault.Usage, fault.ClassOf(err), name)
			got = append(got, err.Error())
		}
		require.Equal(t, c.want, got, name)
	}
	large := Settings{Socket: Socket{Window: 64 << 30}}
	require.Empty(t, large.Check(JobFile))
	require.Equal(t, size.Size(maxWindow), large.Window, "the same limits for the file and the flag")
	w := Settings{Wire: "tls", Streams: 2, RSH: "ssh -v"}
	require.ErrorContains(t, w.RefuseIneffective(OneHost, "here"), "{{wire}} has no effect here")
	require.ErrorContains(t, w.RefuseIneffective(NoRemoteHost, "here"), "{{rsh}} has no effect here")
	require.NoError(t, (&Settings{Wire: Auto, Dial: Auto, RSH: "ssh -v"}).RefuseIneffective(OneHost|NothingMoved, "here"), "same as the default")
}

func TestCongestion(t *testing.T) {
	t.Parallel()
	var name string
	c := congestionValue(&name)
	for text, want := range map[string]string{"bbr": "bbr", "tcp_x-1": "tcp_x-1", "auto": ""} {
		require.NoError(t, c.Set(text), text)
		require.Equal(t, want, name)
	}
	for _, text := range []string{"", "BBR", "a b", "../x", "a_name_that_is_too_long"} {
		require.Error(t, c.Set(text), "%q", text)
	}
}

func TestBetween(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		wire           string
		source, target bool // is the local host
		want           string
	}{
		{NC, true, false, ""}, {NC, false, true, ""}, {NC, true, true, "{{wire nc}} requires one local and one remote side"},
		{NC, false, false, "{{wire nc}} requires one local and one remote side"},
		{SSH, true, false, ""}, {SSH, false, false, "{{wire ssh}} requires one local side"}, {Auto, false, false, ""},
	} {
		err := (&Settings{Wire: c.wire}).CheckHosts(c.source, c.target)
		if c.want == "" {
			require.NoError(t, err)
			continue
		}
		require.EqualError(t, err, c.want)
		require.Equal(t, fault.Usage, fault.ClassOf(err))
	}
}

func TestBandwidthAt(t *testing.T) {
	t.Parallel()
	w := &Settings{Bandwidth: 100, BandwidthWindows: []BandwidthWindow{{From: 8 * 60, To: 18 * 60, Bandwidth: rate(5)}, {From: 22 * 60, To: 6 * 60, Bandwidth: rate(0)}}}
	for clock, want := range map[string]int64{"07:59": 100, "08:00": 5, "17:59": 5, "18:00": 100, "22:00": 100, "05:59": 100, "06:00": 100} {
		at, err := time.Parse("15:04", clock)
		require.NoError(t, err)
		require.Equal(t, want, w.BandwidthAt(at), clock)
	}
}

// TestClosedWindows covers windows with a bandwidth of 0: over midnight, overlapping, and at the
// changes of daylight saving time.
func TestClosedWindows(t *testing.T) {
	t.Parallel()
	berlin, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	at := func(text string) time.Time {
		at, err := time.ParseInLocation("01-02 15:04:05", text, berlin)
		require.NoError(t, err)
		return at.AddDate(2026, 0, 0)
	}
	closed := func(from, to TimeOfDay) BandwidthWindow {
		return BandwidthWindow{From: from, To: to, Bandwidth: rate(0)}
	}
	open := func(from, to TimeOfDay) BandwidthWindow {
		return BandwidthWindow{From: from, To: to, Bandwidth: rate(1)}
	}
	for name, c := range map[string]struct {
		windows   []BandwidthWindow
		now       string
		closed    bool
		next      string // "" = never
		everyTime bool
	}{
		"no window":             {nil, "11-26 08:00:00", false, "", false},
		"before":                {[]BandwidthWindow{closed(480, 1080)}, "11-26 07:59:59", false, "11-26 08:00:00", false},
		"inside":                {[]BandwidthWindow{closed(480, 1080)}, "11-26 08:00:00", true, "11-26 18:00:00", false},
		"last minute":           {[]BandwidthWindow{closed(480, 1080)}, "11-26 17:59:30", true, "11-26 18:00:00", false},
		"after":                 {[]BandwidthWindow{closed(480, 1080)}, "11-26 18:00:00", false, "11-27 08:00:00", false},
		"over midnight":         {[]BandwidthWindow{closed(22*60, 360)}, "11-26 23:00:00", true, "11-27 06:00:00", false},
		"after midnight":        {[]BandwidthWindow{closed(22*60, 360)}, "11-26 05:00:00", true, "11-26 06:00:00", false},
		"adjacent":              {[]BandwidthWindow{closed(480, 600), closed(600, 660)}, "11-26 09:00:00", true, "11-26 11:00:00", false},
		"the first one counts":  {[]BandwidthWindow{open(540, 600), closed(480, 1080)}, "11-26 09:30:00", false, "11-26 10:00:00", false},
		"covered by another":    {[]BandwidthWindow{open(0, 0), closed(480, 1080)}, "11-26 09:30:00", false, "", false},
		"the whole day":         {[]BandwidthWindow{closed(0, 0)}, "11-26 09:30:00", true, "", true},
		"the whole day, other":  {[]BandwidthWindow{closed(480, 480)}, "11-26 07:30:00", true, "", true},
		"the day in two parts":  {[]BandwidthWindow{closed(0, 720), closed(720, 0)}, "11-26 09:30:00", true, "", true},
		"limited is not closed": {[]BandwidthWindow{open(480, 1080)}, "11-26 09:30:00", false, "", false},
		"a day of 25 hours":     {[]BandwidthWindow{closed(480, 481)}, "10-24 08:01:00", false, "10-25 08:00:00", false},
		"a day of 23 hours":     {[]BandwidthWindow{closed(480, 481)}, "03-28 08:01:00", false, "03-29 08:00:00", false},
		"a skipped hour":        {[]BandwidthWindow{closed(60, 150)}, "03-29 01:30:00", true, "03-29 03:00:00", false},
	} {
		w := &Settings{BandwidthWindows: c.windows}
		require.Equal(t, c.closed, w.ClosedAt(at(c.now)), name)
		next, any := w.NextChange(at(c.now))
		require.Equal(t, c.next != "", any, name)
		if any {
			require.Equal(t, c.next, next.Format("01-02 15:04:05"), name)
		}
		require.Equal(t, c.everyTime, w.AlwaysClosed(), name)
	}
}

func rate(n size.Size) *size.Size { return &n }

func TestCheckWindows(t *testing.T) {
	t.Parallel()
	for text, windows := range map[string][]BandwidthWindow{
		"bandwidth is missing":      {{From: 480, To: 1080}},
		"missing or negative":       {{From: 480, To: 1080, Bandwidth: rate(-1)}},
		"at every time of the day":  {{Bandwidth: rate(0)}},
		"so that nothing is ever s": {{From: 480, To: 1080, Bandwidth: rate(0)}, {From: 1080, To: 480, Bandwidth: rate(0)}},
		"":                          {{From: 480, To: 479, Bandwidth: rate(0)}},
	} {
		errs := (&Settings{BandwidthWindows: windows}).Check(JobFile)
		if text == "" {
			require.Empty(t, errs)
			continue
		}
		require.Len(t, errs, 1)
		require.ErrorContains(t, errs[0], text)
		require.NotEmpty(t, fault.HintOf(errs[0]))
	}
}

func TestPorts(t *testing.T) {
	t.Parallel()
	var p Ports
	require.Empty(t, p.String())
	require.NoError(t, p.UnmarshalText([]byte("9000-9010")))
	require.Equal(t, "9000-9010", p.String())
	require.NoError(t, p.UnmarshalText([]byte("22")))
	require.Equal(t, Ports{22, 22}, p)
	require.Equal(t, "22", p.String())
	for _, s := range []string{"", "-", "1-", "-1", "0", "0-5", "1-65536", "2-1", "a-b"} {
		require.Error(t, p.UnmarshalText([]byte(s)), "%q", s)
	}
	require.Equal(t, Ports{22, 22}, p, "an invalid value changes nothing")
}
