package jobfile

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate"
)

// notifyFile returns a job file with a table notify, and jobs with their own.
func notifyFile(notify string, jobs ...string) string {
	text := "[notify]\n" + notify + "\n"
	for i, own := range jobs {
		text += fmt.Sprintf("[[job]]\nname = \"j%d\"\nsource = \"tank/%d\"\nsnapshots.take = \"z_{job}_%%Y%%m%%d%%H%%M\"\n%s\n", i, i, own)
	}
	return text
}

// TestNotifyErrors expects that errors name the key, and do not contain the secret URL.
func TestNotifyErrors(t *testing.T) {
	t.Parallel()
	const secret = "5bf66975"
	for notify, want := range map[string]string{
		`ping = "https://hc.example/` + secret + `"`:                                    "",
		`ping = "http://127.0.0.1:8000/` + secret + `"`:                                 "",
		`ping = "http://[::1]/` + secret + `"`:                                          "",
		`ping = "http://localhost/` + secret + `"`:                                      "",
		`ping = "https://hc.example/` + secret + `/{job}?create=1"`:                     "",
		`ping = "http://hc.example/` + secret + `"`:                                     "notify.ping: http would send the secret URL readable",
		`ping = "http://127.0.0.1.evil.example/` + secret + `"`:                         "notify.ping: http would send",
		`ping = "ftp://hc.example/` + secret + `"`:                                      "notify.ping: the URL does not start with https://",
		`ping = "file:///` + secret + `"`:                                               "notify.ping: not a URL",
		`ping = "` + secret + `"`:                                                       "notify.ping: not a URL",
		`ping = "https://user:` + secret + `@hc.example/"`:                              "notify.ping: the URL has a user or a fragment",
		`ping = "https://hc.example/` + secret + `#x"`:                                  "notify.ping: the URL has a user or a fragment",
		`ping = "https://hc.example/` + secret + `/{jbo}"`:                              "notify.ping: not a URL",
		`ping = "https://hc.example/` + secret + ` x"`:                                  "notify.ping: not a URL",
		`ping = "https://hc.example/` + secret + `\u001b[2J"`:                           "notify.ping: not a URL",
		`ping = "https://hc.example:` + secret + `x/"`:                                  "notify.ping: not a URL",
		"ping = \"https://hc.example/" + secret + "\"\nping_file = \"/etc/zxfer/ping\"": "notify.ping and notify.ping_file exclude each other",
		`ping_file = "ping"`:                                                            `notify.ping_file: "ping" is not an absolute path`,
		`ping_file = "https://hc.example/` + secret + `"`:                               "notify.ping_file is a URL",
		`mail = ["admin@example.org","root"]`:                                           "",
		`mail = ["-oQ/tmp"]`:                                                            `notify.mail: "-oQ/tmp" is not a mail address`,
		`mail = ["a@b\r\nBcc: c@d"]`:                                                    "is not a mail address",
		`mail = ["a b@c"]`:                                                              "is not a mail address",
		`mail = ["a,b@c"]`:                                                              "is not a mail address",
		`mail = ["a@b@c"]`:                                                              "is not a mail address",
		"mail = [\"a@b\"]\nmail_on = \"never\"":                                         `notify.mail_on = "never": write one of failure, always`,
		`sendmail = ["sendmail"]`:                                                       `notify.sendmail: "sendmail" is not an absolute path`,
		`pign = "https://hc.example/x"`:                                                 `unknown key "notify.pign"`,
	} {
		_, err := Parse("x", []byte(notifyFile(notify, "")))
		if want == "" {
			require.NoError(t, err, notify)
			continue
		}
		require.ErrorContains(t, err, want, notify)
		require.NotContains(t, err.Error(), secret)
		_, err = Parse("x", []byte(notifyFile("", "[job.notify]\n"+notify)))
		require.Error(t, err, notify)
		require.NotContains(t, err.Error(), secret)
	}
}

// TestSharedPing expects that two jobs cannot have the same check, because the success of one
// would end the alarm of the other.
func TestSharedPing(t *testing.T) {
	t.Parallel()
	const same = `ping = "https://hc.example/x"`
	own := func(url string) string { return "[job.notify]\nping = \"" + url + "\"" }
	_, err := Parse("x", []byte(notifyFile(same, "", "")))
	require.ErrorContains(t, err, "x: notify.ping: jobs j0, j1 have the same URL")
	_, err = Parse("x", []byte(notifyFile("", own("https://hc.example/x"), own("https://hc.example/x"))))
	require.ErrorContains(t, err, "have the same URL")
	_, err = Parse("x", []byte(notifyFile(same, "", own("https://hc.example/y"))))
	require.NoError(t, err)

	f, err := Parse("x", []byte(notifyFile(`ping = "https://hc.example/x/zxfer-{job}"`, "", "")))
	require.NoError(t, err)
	for i, want := range []string{"https://hc.example/x/zxfer-j0", "https://hc.example/x/zxfer-j1"} {
		n := f.Jobs[i].Notify
		at, err := n.PingURL(string(n.Ping), f.Jobs[i].Name)
		require.NoError(t, err)
		require.Equal(t, want, at.String())
	}
	f, err = Parse("x", []byte(notifyFile(`ping_file = "/etc/zxfer/ping"`, "", "")))
	require.NoError(t, err)
	_, err = f.Jobs[0].Notify.PingURL("https://hc.example/x", "j0")
	require.ErrorContains(t, err, "several jobs have the same URL")
	_, err = f.Jobs[0].Notify.PingURL("https://hc.example/{job}", "j0")
	require.NoError(t, err)
}

// TestMergedNotify expects that the table of a job replaces single keys.
func TestMergedNotify(t *testing.T) {
	t.Parallel()
	f, err := Parse("x", []byte(notifyFile("ping_file = \"/etc/zxfer/{job}\"\nmail = [\"root\"]\nmail_on = \"always\"",
		"", "[job.notify]\nping = \"https://hc.example/x\"", "[job.notify]\nmail = []\nmail_on = \"failure\"")))
	require.NoError(t, err)
	require.Equal(t, &replicate.Notify{PingFile: "/etc/zxfer/j0", Mail: []string{"root"}, MailOn: "always"}, f.Jobs[0].Notify)
	require.Equal(t, &replicate.Notify{Ping: "https://hc.example/x", Mail: []string{"root"}, MailOn: "always"}, f.Jobs[1].Notify)
	require.False(t, f.Jobs[2].Notify.HasMail())
	require.True(t, f.Jobs[2].Notify.HasPing())
	text, err := json.Marshal(f)
	require.NoError(t, err)
	require.NotContains(t, string(text), "hc.example")
	require.NotContains(t, fmt.Sprintf("%v %+v %#v %s", f.Jobs[1].Notify, *f.Jobs[1].Notify, *f.Jobs[1].Notify, f.Jobs[1].Notify.Ping), "hc.example")

	f, err = Parse("x", []byte(notifyFile("", "", "")))
	require.NoError(t, err)
	require.Nil(t, f.Jobs[0].Notify)
	require.False(t, f.Jobs[0].Notify.HasPing() || f.Jobs[0].Notify.HasMail())
}

// TestValidateIsPure expects that validation changes nothing in its input.
func TestValidateIsPure(t *testing.T) {
	t.Parallel()
	text := []byte(`notify = { mail = ["root"], ping_file = "/etc/zxfer/{job}" }
[[job]]
name = "home"
source = "tank/home"
recursive = true
snapshots = { take = "s_%Y-%m-%d_%H:%M:%S", latest_only = true }
notify = { mail_on = "always" }
transfer = { bandwidth = "10MiB", wire = "tls", ports = "9000-9010", compress = "zstd" }
freeze = [{ kind = "command", freeze = ["/bin/true"], thaw = ["/bin/true"] }]
[[job.target]]
name = "usb"
to = "usb/home"
disk = { pools = { red = "1", blue = "2" }, import = true }
mirror = {}
`)
	want, have := &replicate.File{}, &replicate.File{}
	require.NoError(t, decode(text, want))
	require.NoError(t, decode(text, have))
	_ = Validate(have)
	require.Equal(t, want, have)
	require.Equal(t, 1, want.Jobs[0].SnapshotLimitsOf(&want.Jobs[0].Targets[0]).Newest, "latest_only is newest = 1")
}

// TestNotifyOfHosts expects that hosts of a shared file have different checks.
func TestNotifyOfHosts(t *testing.T) {
	t.Parallel()
	inv, err := Read("x", []byte("[[host]]\nname = \"web\"\nnames = [\"web[1-2]\"]\n"+notifyFile(`ping = "https://hc.example/x/{host}-{job}"`, "")))
	require.NoError(t, err)
	f, err := inv.For("web2")
	require.NoError(t, err)
	at, err := f.Jobs[0].Notify.PingURL(string(f.Jobs[0].Notify.Ping), "j0")
	require.NoError(t, err)
	require.Equal(t, "https://hc.example/x/web2-j0", at.String())
}

// TestClosedWindowFaults expects that a job to which a window never permits a transfer is refused.
func TestClosedWindowFaults(t *testing.T) {
	t.Parallel()
	file := func(schedule, windows string) string {
		return "[[job]]\nname = \"j\"\nsource = \"tank/a\"\nsnapshots.take = \"z_%Y%m%d%H%M\"\n" + schedule + "\n[[job.target]]\nname = \"t\"\nto = \"b:vault/a\"\n[job.transfer]\nbandwidth_window = [" + windows + "]\n"
	}
	const day = `{ from = "08:00", to = "18:00", bandwidth = 0 }`
	for text, want := range map[string]string{
		file("", day):                    "",
		file(`schedule = "hourly"`, day): "",
		file(`schedule = "hourly"`, `{ from = "08:00", to = "18:00", bandwidth = "0" }`): "",
		file(`schedule = "12:00"`, day): `bandwidth = 0 applies at every time of schedule "12:00", so that nothing is ever sent to target "t"`,
		file(`schedule = "12:00"`, `{ from = "11:00", to = "13:00", bandwidth = "1MiB" }, `+day): "",
		file(`schedule = "*-02-30 12:00"`, day):                                                  "",
		file("", `{ from = "08:00", to = "08:00", bandwidth = 0 }`):                              "applies at every time of the day",
		file("", `{ from = "08:00", to = "18:00" }`):                                             "bandwidth is missing",
		file("", `{ from = "08:00", to = "18:00", bandwidth = -1 }`):                             "missing or negative",
	} {
		_, err := Parse("x", []byte(text))
		if want == "" {
			require.NoError(t, err, text)
			continue
		}
		require.ErrorContains(t, err, want, text)
	}
}
