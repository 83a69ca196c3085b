package plan

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
)

func TestReceiveProperties(t *testing.T) {
	t.Parallel()
	carry := func(r *Request) { r.CarryProperties = true }
	set := func(kv ...string) func(*Request) {
		return func(r *Request) {
			r.Set = map[string]string{}
			for i := 0; i < len(kv); i += 2 {
				r.Set[kv[i]] = kv[i+1]
			}
		}
	}
	local := []string{"recordsize=1048576", "compression=lz4", "atime=off", "mountpoint=/home", "canmount=on", "sharenfs=on",
		"readonly=off", "quota=1000", "org.example:note=kept", zfs.FlagsProperty + "=w"}
	tests := []struct {
		name   string
		ask    []func(*Request)
		source []string
		want   map[string]string
		note   string
	}{
		{"defaults", nil, nil, map[string]string{"readonly": "on", "canmount": "noauto", zfs.FlagsProperty: "Lc"}, ""},
		{"a volume", nil, []string{"type=volume", "volblocksize=16384", "volsize=1073741824"},
			map[string]string{"readonly": "on", zfs.FlagsProperty: "Lc"}, ""},
		{"properties that affect stored data", nil, local,
			map[string]string{"readonly": "on", "canmount": "noauto", zfs.FlagsProperty: "Lc", "recordsize": "1048576", "compression": "lz4"}, ""},
		{"harmless properties", []func(*Request){carry}, local,
			map[string]string{"readonly": "on", "canmount": "noauto", zfs.FlagsProperty: "Lc", "recordsize": "1048576", "compression": "lz4", "atime": "off"},
			"not set on the target: canmount of tank/a, mountpoint of tank/a, quota of tank/a, readonly of tank/a, sharenfs of tank/a: they depend on the dataset's location; to set one there: {{set NAME=VALUE}}\n" +
				"not set on the target: org.example:note of tank/a: the receiving side did not request them; to transfer one: {{carry NAME}}"},
		{"named properties", []func(*Request){func(r *Request) { r.CarryNamed = []string{"org.example:note"} }}, []string{"atime=off", "org.example:note=kept", "org.example:other=x"},
			map[string]string{"readonly": "on", "canmount": "noauto", zfs.FlagsProperty: "Lc", "atime": "off", "org.example:note": "kept"},
			"not set on the target: org.example:other of tank/a: the receiving side did not"},
		{"requested values", []func(*Request){set("readonly", "off", "mountpoint", "/srv", "canmount", "on", "compression", "zstd")}, local,
			map[string]string{"readonly": "off", "canmount": "on", zfs.FlagsProperty: "Lc", "recordsize": "1048576", "compression": "zstd", "mountpoint": "/srv"}, ""},
		{"excluded", []func(*Request){carry, func(r *Request) { r.Exclude = []string{"readonly", "recordsize", "atime", "compression", "mountpoint"} }, set("quota", "7")}, local,
			map[string]string{"canmount": "noauto", zfs.FlagsProperty: "Lc", "quota": "7"}, "canmount of tank/a, sharenfs of tank/a: they depend on the dataset's location; "},
		{"values with newlines", []func(*Request){func(r *Request) { r.CarryNamed = []string{"a:lines", "a:bytes", "a:lost", "a:line"} }},
			[]string{"a:lines=one\ttwo\nx\tlocal\ntank\tsetuid\toff", "a:bytes=\xff", "a:lost=\ufffd", "a:line=one", "atime=off\n"},
			map[string]string{"readonly": "on", "canmount": "noauto", zfs.FlagsProperty: "Lc", "a:line": "one"},
			"not set on the target: a:bytes of tank/a, a:lines of tank/a, a:lost of tank/a, atime of tank/a: their values are invalid, or not one printable line of UTF-8"},
		{"properties that grant rights", []func(*Request){carry}, []string{"setuid=on", "devices=on", "exec=off", "org.openzfs.systemd:required-by=x.service", "zxfer:job=offsite", "dedup=on"},
			map[string]string{"readonly": "on", "canmount": "noauto", zfs.FlagsProperty: "Lc", "exec": "off"},
			"not set on the target: devices of tank/a, setuid of tank/a: they can grant rights to programs or devices; to set one there: {{set NAME=VALUE}}\n" +
				"not set on the target: org.openzfs.systemd:required-by of tank/a, zxfer:job of tank/a: zxfer or systemd acts on them; to set one there: {{set NAME=VALUE}}\n" +
				"not set on the target: dedup of tank/a: the receiving side did not request them"},
		{"no checksum", nil, []string{"checksum=off"}, map[string]string{"readonly": "on", "canmount": "noauto", zfs.FlagsProperty: "Lc"},
			"not set on the target: checksum of tank/a: the receiving side did not"},
		{"raw", []func(*Request){carry}, []string{encrypted, "keyformat=passphrase", "keylocation=prompt", "pbkdf2iters=350000", "compression=lz4"},
			map[string]string{"readonly": "on", "canmount": "noauto", zfs.FlagsProperty: "w", "compression": "lz4"}, ""},
		{"invalid for a volume", []func(*Request){set("recordsize", "16384", "sync", "disabled")}, []string{"type=volume"},
			map[string]string{"readonly": "on", zfs.FlagsProperty: "Lc", "sync": "disabled"}, "tank/a: {{set}} recordsize is ignored: a volume has no such property"},
		{"unsupported by the pool", nil, []string{"checksum=blake3", "compression=lz4"},
			map[string]string{"readonly": "on", "canmount": "noauto", zfs.FlagsProperty: "Lc", "compression": "lz4"}, "checksum=blake3 is not transferred: pool beta:vault lacks the feature blake3"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			req := request()
			for _, ask := range tt.ask {
				ask(&req)
			}
			p := mustMake(t, req, stateOf(dataset(t, "tank/a", "@a,1 @b,2", tt.source...)))
			d := onlyDataset(t, p)
			require.Equal(t, tt.want, d.Steps[0].Receive.Set)
			_, err := zfs.ReceiveArgs(d.Steps[0].Receive)
			require.NoError(t, err)
			for name, v := range dataset(t, "tank/a", "@a,1", tt.source...).Properties { // the builder of -o knows whose values these are
				_, asked := req.Set[name]
				set, is := tt.want[name]
				require.Equal(t, is && v.Local() && set == v.Value && !asked && name != "readonly" && name != zfs.FlagsProperty, slices.Contains(d.Steps[0].Receive.Carried, name), name)
			}
			require.Empty(t, d.Steps[1].Receive.Set, "once is enough")
			if tt.note == "" {
				require.Empty(t, p.Notes)
			} else {
				require.Contains(t, notes(p), tt.note)
			}
		})
	}
	received := dataset(t, "tank/a", "@a,1", "recordsize=16384", "compression=off", "checksum=sha256")
	received.Properties["recordsize"] = zfs.Property{Value: "16384", Source: "received"}
	received.Properties["compression"] = zfs.Property{Value: "off", Source: "inherited from tank"}
	set1 := onlyDataset(t, mustMake(t, request(), stateOf(received))).Steps[0].Receive.Set
	require.Equal(t, "16384", set1["recordsize"], "received properties count as set")
	require.NotContains(t, set1, "compression", "inherited properties belong to the parent")
}

// TestSkippedProperties expects that skipped properties are listed once for all datasets.
func TestSkippedProperties(t *testing.T) {
	t.Parallel()
	state := stateOf(dataset(t, "tank/a", "@a,1 @b,2", "quota=7"), dataset(t, "tank/a/b", "@a,3", "mountpoint=/b"), dataset(t, "tank/a/c", "@a,4", "mountpoint=/c"))
	p := mustMake(t, request().with(func(r *Request) { r.CarryProperties, r.Recursive = true, true }), state)
	require.Len(t, p.Notes, 1)
	require.Contains(t, p.Notes[0], "not set on the target: mountpoint of tank/a/b and 1 more, quota of tank/a: they depend on the dataset's location; ")
	require.Empty(t, mustMake(t, request().with(func(r *Request) { r.Recursive = true }), state).Notes, "nothing was requested")
}

// TestPropertiesOfIncrementalSends expects that an existing dataset keeps its properties, except the
// requested ones.
func TestPropertiesOfIncrementalSends(t *testing.T) {
	t.Parallel()
	state := stateOf(dataset(t, "tank/a", "#a,1 @b,2 @c,3", "recordsize=1048576", "atime=off", "mountpoint=/x"), dataset(t, "vault/a", "@a,1"))
	d := onlyDataset(t, mustMake(t, request(), state))
	require.Len(t, d.Steps, 2)
	require.Nil(t, d.Steps[0].Receive.Set)
	d = onlyDataset(t, mustMake(t, request().with(func(r *Request) { r.Set = map[string]string{"compression": "zstd", "readonly": "off"} }), state))
	require.Equal(t, map[string]string{"compression": "zstd", "readonly": "off"}, d.Steps[0].Receive.Set)
	require.Nil(t, d.Steps[1].Receive.Set)
	d = onlyDataset(t, mustMake(t, request().with(func(r *Request) { r.CarryProperties = true }), state))
	require.Equal(t, map[string]string{"recordsize": "1048576", "atime": "off"}, d.Steps[0].Receive.Set)
}

func TestBadProperties(t *testing.T) {
	t.Parallel()
	raw := []string{encrypted}
	tests := []struct {
		name    string
		set     map[string]string
		exclude []string
		source  []string
		exists  bool
		text    string
	}{
		{"read-only", map[string]string{"used": "3"}, nil, nil, false, "{{set}} used: the property is read-only"},
		{"unknown", map[string]string{"recordsise": "3"}, nil, nil, false, "{{set}} recordsise: there is no such property"},
		{"illegal", map[string]string{"Bad": "3"}, nil, nil, false, `"Bad"`},
		{"fixed", map[string]string{"casesensitivity": "mixed"}, nil, nil, false, "{{set}} casesensitivity: the stream sets it, and the target cannot override it"},
		{"fixed for volumes", map[string]string{"volblocksize": "8192"}, nil, nil, false, "{{set}} volblocksize: the stream sets it, and the target cannot override it"},
		{"the origin", map[string]string{"origin": "vault/x@y"}, nil, nil, false, "{{set}} origin"},
		{"encryption of a raw stream", map[string]string{"encryption": "off"}, nil, raw, false, "{{set}} encryption: a raw stream brings its own encryption"},
		{"key of a raw stream", map[string]string{"keylocation": "prompt"}, nil, raw, false, "{{set}} keylocation"},
		{"encryption of an existing dataset", map[string]string{"encryption": "on"}, nil, nil, true, "beta:vault/a exists, and its encryption cannot be changed"},
		{"a missing feature", map[string]string{"checksum": "blake3"}, nil, nil, false, "zpool set feature@blake3=enabled vault"},
		{"value with a newline", map[string]string{"org.example:note": "a\nb"}, nil, nil, false, "{{set}} org.example:note=\"a\\nb\": the value must be one printable line"},
		{"excluded unknown", nil, []string{"recordsise"}, nil, false, "{{exclude}} recordsise: there is no such property"},
		{"excluded illegal", nil, []string{"-F"}, nil, false, `"-F"`},
		{"excluded encryption of a raw stream", nil, []string{"encryption"}, raw, false, "{{exclude}} encryption: a raw stream brings its encryption"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			datasets := []*zfs.Dataset{dataset(t, "tank/a", "@a,1 @b,2", tt.source...)}
			if tt.exists {
				datasets = append(datasets, dataset(t, "vault/a", "@a,1"))
			}
			req := request().with(func(r *Request) { r.Set, r.Exclude = tt.set, tt.exclude })
			requireConflict(t, mustMake(t, req, stateOf(datasets...)), BadProperty, tt.text)
		})
	}
	d := onlyDataset(t, mustMake(t, request().with(func(r *Request) {
		r.Set = map[string]string{"encryption": "on", "keyformat": "raw", "keylocation": "file:///k"}
	}),
		stateOf(dataset(t, "tank/a", "@a,1"))))
	require.Equal(t, "Lc", flagString(d.Steps[0].Send.Flags), "embedded blocks cannot be encrypted")
	require.Equal(t, "file:///k", d.Steps[0].Receive.Set["keylocation"])
}

// TestEncryptionOfExistingDataset expects that requested encryption applies only to new datasets.
// Existing ones continue, so that the same command and a job's next run work.
func TestEncryptionOfExistingDataset(t *testing.T) {
	t.Parallel()
	on := map[string]string{"encryption": "on", "keyformat": "raw", "keylocation": "file:///k"}
	ask := func(set map[string]string) Request {
		return request().with(func(r *Request) { r.Recursive, r.Set = true, set })
	}
	source := func() []*zfs.Dataset {
		return []*zfs.Dataset{dataset(t, "tank/a", "@a,1 @b,2"), dataset(t, "tank/a/c", "@a,3")}
	}
	counterpart := dataset(t, "vault/a", "@a,1", encrypted, unlocked)
	p := mustMake(t, ask(on), stateOf(append(source(), counterpart)...))
	require.Empty(t, p.Conflicts)
	require.Equal(t, "tank/a: @a>@b\ntank/a/c: full @a after tank/a", planText(p))
	require.Empty(t, p.Datasets[0].Steps[0].Receive.Set)
	require.Equal(t, "raw", p.Datasets[1].Steps[0].Receive.Set["keyformat"])

	p = mustMake(t, ask(map[string]string{"encryption": "off"}), stateOf(append(source(), dataset(t, "vault/a", "@a,1"))...))
	require.Empty(t, p.Conflicts)
	require.Empty(t, p.Datasets[0].Steps[0].Receive.Set)

	plain := dataset(t, "vault/a", "@a,1")
	for name, s := range map[string]struct {
		set   map[string]string
		there []*zfs.Dataset
		which string
	}{
		"not encrypted":         {on, []*zfs.Dataset{plain}, "vault/a"},
		"child not encrypted":   {on, []*zfs.Dataset{counterpart, dataset(t, "vault/a/c", "@a,3")}, "vault/a/c"},
		"other algorithm":       {map[string]string{"encryption": "aes-128-gcm"}, []*zfs.Dataset{counterpart}, "vault/a"},
		"encryption not wanted": {map[string]string{"encryption": "off"}, []*zfs.Dataset{counterpart}, "vault/a"},
		"other key location":    {map[string]string{"keylocation": "prompt"}, []*zfs.Dataset{counterpart}, "vault/a"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireConflict(t, mustMake(t, ask(s.set), stateOf(append(source(), s.there...)...)), BadProperty, "beta:"+s.which+" exists, and its encryption cannot be changed")
		})
	}
}

// TestCarriedNames expects that property names without effect are refused.
func TestCarriedNames(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"setuid": "{{carry}} setuid cannot be transferred: it can grant rights", "mountpoint": "it depends on the dataset's location", "zxfer:job": "zxfer or systemd",
		"org.openzfs.systemd:ignore": "zxfer or systemd", "volsize": "the stream sets it", "recordsise": "there is no such property", "Bad": `"Bad"`,
	} {
		requireConflict(t, mustMake(t, request().with(func(r *Request) { r.CarryNamed = []string{name} }), stateOf(dataset(t, "tank/a", "@a,1"))), BadProperty, text)
	}
}

// TestRestoreKeepsLocalProperties expects that a restore gives a new dataset the properties that
// the copy may bring. An existing dataset keeps its local ones and gets none from the copy.
func TestRestoreKeepsLocalProperties(t *testing.T) {
	t.Parallel()
	restore := request().with(func(r *Request) { r.Restore, r.CarryProperties = true, true })
	source := func() *zfs.Dataset {
		return dataset(t, "tank/a", "@a,1 @b,2", "atime=off", "setuid=on", "com.sun:auto-snapshot=true", "a:b=x\ny", "org.zfsbootmenu:commandline=init=/x")
	}
	p := mustMake(t, restore, stateOf(source()))
	set := onlyDataset(t, p).Steps[0].Receive.Set
	require.Equal(t, map[string]string{"readonly": "on", "canmount": "noauto", zfs.RestoreProperty: "on", zfs.FlagsProperty: set[zfs.FlagsProperty], "atime": "off"}, set)
	require.Contains(t, notes(p), "not set on the target: setuid of tank/a: they can grant rights")
	require.Contains(t, notes(p), "not set on the target: a:b of tank/a, com.sun:auto-snapshot of tank/a, org.zfsbootmenu:commandline of tank/a: the")

	p = mustMake(t, restore, stateOf(source(), dataset(t, "vault/a", "@a,1", "atime=on", "setuid=off", "com.sun:auto-snapshot=false")))
	require.Nil(t, onlyDataset(t, p).Steps[0].Receive.Set)
	require.Empty(t, onlyDataset(t, p).Restore.Set)
	require.Empty(t, onlyDataset(t, p).Restore.Revert)
}

// TestRestoreSetsOnlyValidValues expects that a copy cannot make a restore set an invalid value.
func TestRestoreSetsOnlyValidValues(t *testing.T) {
	t.Parallel()
	d := dataset(t, "tank/a", "@a,1")
	d.Properties["readonly"] = zfs.Property{Value: "off", Source: "received"}
	d.Properties["canmount"] = zfs.Property{Value: "on\nx", Source: "received"}
	p := mustMake(t, request().with(func(r *Request) { r.Restore, r.CarryProperties = true, true }), stateOf(d))
	require.Equal(t, map[string]string{"readonly": "off"}, onlyDataset(t, p).Restore.Set)
	require.Equal(t, []string{"canmount"}, onlyDataset(t, p).Restore.Revert)
}
