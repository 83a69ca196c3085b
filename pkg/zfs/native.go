package zfs

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// class is the effect of a native property. Carry derives from it whether another host may
// choose the value.
type class int

const (
	// shape determines the form of newly written blocks.
	shape class = iota + 1
	// behaviour determines how the dataset treats its own files. No value gives users or the
	// host anything that the files could not give.
	behaviour
	// resources uses up memory or devices of the pool, or creates device nodes.
	resources
	// rights lets programs, device nodes or labels in the dataset affect the host.
	rights
	// place belongs to the position in the tree: mountpoint, shares and limits.
	place
	// encryption comes with a raw stream, or is chosen for a new dataset.
	encryption
	// fixed is determined by the stream that creates the dataset.
	fixed
	// report is read-only.
	report
)

// nativeProperty is a property of OpenZFS 2.1 to 2.4.
type nativeProperty struct {
	name string
	on   string // "f" filesystems, "v" volumes, "fv" both; "" neither
	of   class
	// words are the valid values, separated by spaces. If it is empty, want decides.
	words string
	// want returns a description of the valid values, "" if value is valid. nil accepts any
	// line.
	want func(value string) string
	// foreign lists the values that another host may choose, nil for all. Values of resources,
	// rights and place are withheld unless listed here.
	foreign []string
	// access reports that files mean something else without the value: who may use them, and what can be
	// done with them. Copies get it by default (see Access).
	access bool
	// text reports that a value may contain any text, including tabs and line breaks.
	text bool
}

const onOff = "on off"

// nativeProperties are all native properties. A test compares them with the lists of four
// releases.
//
// https://github.com/openzfs/zfs/blob/zfs-2.4.4/module/zcommon/zfs_prop.c (zfs_prop_init)
var nativeProperties = []nativeProperty{
	{name: "checksum", on: "fv", of: shape, words: "on off fletcher2 fletcher4 sha256 noparity sha512 skein edonr blake3",
		foreign: []string{"on", "fletcher2", "fletcher4", "sha256", "sha512", "skein", "edonr", "blake3"}}, // the others detect no damage
	{name: "compression", on: "fv", of: shape, want: wantCompression},
	{name: "copies", on: "fv", of: shape, words: "1 2 3"},
	{name: "dnodesize", on: "f", of: shape, words: "legacy auto 1k 2k 4k 8k 16k"},
	{name: "recordsize", on: "f", of: shape, want: wantRecordsize},

	{name: "aclinherit", on: "f", of: behaviour, access: true, words: "discard noallow restricted passthrough secure passthrough-x"},
	{name: "aclmode", on: "f", of: behaviour, access: true, words: "discard groupmask passthrough restricted"},
	{name: "acltype", on: "f", of: behaviour, access: true, words: "off posix nfsv4 disabled noacl posixacl"},
	{name: "atime", on: "f", of: behaviour, words: onOff},
	{name: "defaultgroupobjquota", on: "f", of: behaviour, want: wantLimit},
	{name: "defaultgroupquota", on: "f", of: behaviour, want: wantLimit},
	{name: "defaultprojectobjquota", on: "f", of: behaviour, want: wantLimit},
	{name: "defaultprojectquota", on: "f", of: behaviour, want: wantLimit},
	{name: "defaultuserobjquota", on: "f", of: behaviour, want: wantLimit},
	{name: "defaultuserquota", on: "f", of: behaviour, want: wantLimit},
	{name: "direct", on: "f", of: behaviour, words: "disabled standard always"},
	{name: "logbias", on: "fv", of: behaviour, words: "latency throughput"},
	{name: "longname", on: "f", of: behaviour, access: true, words: onOff},
	{name: "nbmand", on: "f", of: behaviour, access: true, words: onOff},
	{name: "prefetch", on: "fv", of: behaviour, words: "none metadata all"},
	{name: "primarycache", on: "fv", of: behaviour, words: "none metadata all"},
	{name: "redundant_metadata", on: "fv", of: behaviour, words: "all most some none"},
	{name: "relatime", on: "f", of: behaviour, words: onOff},
	{name: "secondarycache", on: "fv", of: behaviour, words: "none metadata all"},
	{name: "snapdir", on: "f", of: behaviour, words: "hidden visible disabled"},
	{name: "sync", on: "fv", of: behaviour, words: "standard always disabled"},
	{name: "volthreading", on: "v", of: behaviour, words: onOff},
	{name: "vscan", on: "f", of: behaviour, words: onOff},
	{name: "xattr", on: "f", of: behaviour, words: "off sa on dir"},

	{name: "dedup", on: "fv", of: resources, foreign: []string{"off"}, // its table uses memory until the blocks are freed
		words: "on off verify sha256 sha256,verify sha512 sha512,verify skein skein,verify edonr,verify blake3 blake3,verify"},
	{name: "snapdev", on: "fv", of: resources, words: "hidden visible", foreign: []string{"hidden"}}, // device nodes, which the kernel looks for partitions in
	{name: "special_small_blocks", on: "f", of: resources, want: wantSmallBlocks, foreign: []string{"0"}},
	{name: "volmode", on: "fv", of: resources, words: "default full geom dev none", foreign: []string{"none"}},

	{name: "devices", on: "f", of: rights, access: true, words: onOff, foreign: []string{"off"}},
	{name: "exec", on: "f", of: rights, access: true, words: onOff, foreign: []string{"off"}},
	{name: "setuid", on: "f", of: rights, access: true, words: onOff, foreign: []string{"off"}},
	{name: "context", on: "fv", of: rights, text: true},
	{name: "defcontext", on: "fv", of: rights, text: true},
	{name: "fscontext", on: "fv", of: rights, text: true},
	{name: "rootcontext", on: "fv", of: rights, text: true},
	{name: "mlslabel", on: "fv", of: rights, text: true},
	{name: "zoned", on: "f", of: rights, words: onOff},
	{name: "jailed", on: "f", of: rights, words: onOff}, // zoned on FreeBSD

	{name: "canmount", on: "f", of: place, words: "on off noauto"},
	{name: "filesystem_limit", on: "f", of: place, want: wantLimit},
	{name: "iscsioptions", on: "v", of: place, text: true}, // hidden, and without effect
	{name: "mountpoint", on: "f", of: place, want: wantMountpoint, text: true},
	{name: "overlay", on: "f", of: place, words: onOff},
	{name: "quota", on: "f", of: place, want: wantLimit},
	{name: "readonly", on: "fv", of: place, words: onOff},
	{name: "refquota", on: "f", of: place, want: wantLimit},
	{name: "refreservation", on: "fv", of: place, want: wantRefreservation},
	{name: "reservation", on: "fv", of: place, want: wantLimit},
	{name: "sharenfs", on: "f", of: place, text: true},
	{name: "sharesmb", on: "f", of: place, text: true},
	{name: "snapshot_limit", on: "fv", of: place, want: wantLimit},
	{name: "stmf_sbd_lu", on: "v", of: place, text: true}, // hidden, and without effect

	{name: "encryption", on: "fv", of: encryption, words: "on off aes-128-ccm aes-192-ccm aes-256-ccm aes-128-gcm aes-192-gcm aes-256-gcm"},
	{name: "keyformat", on: "fv", of: encryption, words: "raw hex passphrase"},
	{name: "keylocation", on: "fv", of: encryption, want: wantKeylocation, text: true},
	{name: "pbkdf2iters", on: "fv", of: encryption, want: wantIterations},

	{name: "casesensitivity", on: "f", of: fixed},
	{name: "normalization", on: "f", of: fixed},
	{name: "utf8only", on: "f", of: fixed},
	{name: "version", on: "f", of: fixed},
	{name: "volblocksize", on: "v", of: fixed},
	{name: "volsize", on: "v", of: fixed},

	{name: "available", on: "fv", of: report}, {name: "clones", of: report}, {name: "compressratio", on: "fv", of: report},
	{name: "createtxg", on: "fv", of: report}, {name: "creation", on: "fv", of: report}, {name: "defer_destroy", of: report},
	{name: "encryptionroot", on: "fv", of: report}, {name: "filesystem_count", on: "f", of: report}, {name: "guid", on: "fv", of: report},
	{name: "inconsistent", on: "fv", of: report}, {name: "ivsetguid", on: "fv", of: report}, {name: "keyguid", on: "fv", of: report},
	{name: "keystatus", on: "fv", of: report}, {name: "logicalreferenced", on: "fv", of: report}, {name: "logicalused", on: "fv", of: report},
	{name: "mounted", on: "f", of: report}, {name: "name", on: "fv", of: report}, {name: "numclones", of: report},
	{name: "objsetid", on: "fv", of: report}, {name: "origin", on: "fv", of: report}, {name: "pbkdf2salt", on: "fv", of: report},
	{name: NewestProperty, on: "fv", of: report}, {name: "receive_resume_token", on: "fv", of: report}, {name: "redact_snaps", on: "fv", of: report},
	{name: "redacted", on: "fv", of: report}, {name: "refcompressratio", on: "fv", of: report}, {name: "referenced", on: "fv", of: report},
	{name: "remaptxg", on: "fv", of: report}, {name: "snapshot_count", on: "fv", of: report}, {name: ChangedProperty, on: "fv", of: report},
	{name: "type", on: "fv", of: report}, {name: "unique", on: "fv", of: report}, {name: "used", on: "fv", of: report},
	{name: "usedbychildren", on: "fv", of: report}, {name: "usedbydataset", on: "fv", of: report},
	{name: "usedbyrefreservation", on: "fv", of: report}, {name: "usedbysnapshots", on: "fv", of: report},
	{name: "useraccounting", on: "fv", of: report}, {name: "userrefs", of: report}, {name: "written", on: "fv", of: report},
}

// nativeOf returns the native property of that name, nil if there is none.
func nativeOf(property string) *nativeProperty {
	if i := slices.IndexFunc(nativeProperties, func(n nativeProperty) bool { return n.name == property }); i >= 0 {
		return &nativeProperties[i]
	}
	return nil
}

func classOf(property string) class {
	if n := nativeOf(property); n != nil {
		return n.of
	}
	return 0
}

// fits reports whether a dataset of type t can have the property.
func (n *nativeProperty) fits(t Type) bool {
	return t == Filesystem && strings.Contains(n.on, "f") || t == Volume && strings.Contains(n.on, "v")
}

// requires returns a description of the valid values, "" if ZFS may accept value.
func (n *nativeProperty) requires(value string) string {
	if n.words != "" {
		if words := strings.Fields(n.words); !slices.Contains(words, value) {
			return "one of " + strings.Join(words, ", ")
		}
	}
	if n.want != nil {
		return n.want(value)
	}
	return ""
}

// EncryptionBound reports whether a property belongs to a dataset's encryption. Raw streams
// contain it, and zfs receive refuses to set or exclude it.
func EncryptionBound(property string) bool { return classOf(property) == encryption }

// ReadOnly reports whether a property can never be set.
func ReadOnly(property string) bool { return classOf(property) == report }

// FixedAtCreation reports whether the stream that creates a dataset decides the property.
func FixedAtCreation(property string) bool { return classOf(property) == fixed }

// KnownProperty reports whether OpenZFS 2.1 to 2.4 has a property of this name. User
// properties exist once they are set.
func KnownProperty(property string) bool { return UserProperty(property) || nativeOf(property) != nil }

// Settable reports whether a dataset of the type can have the property. User
// properties and properties that this package does not know fit every type.
func Settable(t Type, property string) bool {
	n := nativeOf(property)
	return n == nil || n.fits(t)
}

// freeText reports whether the value of a property may hold any text.
func freeText(property string) bool {
	n := nativeOf(property)
	return n == nil || n.text
}

// compressions are the algorithms, with their levels.
var compressions = regexp.MustCompile(`^(on|off|lzjb|zle|lz4|gzip(-[1-9])?|zstd(-[1-9]|-1[0-9])?|zstd-fast(-[1-9]|-[1-9]0|-100|-500|-1000)?)$`)

func wantCompression(value string) string {
	return unless(compressions.MatchString(value), "on, off, lz4, zstd, zstd-1 to zstd-19, zstd-fast, zstd-fast-1 to -10, gzip, gzip-1 to gzip-9, lzjb or zle")
}

func wantRecordsize(value string) string {
	size, ok := parseSize(value)
	return unless(ok && size >= 512 && size <= 16<<20 && size&(size-1) == 0, "a power of two from 512 to 16M")
}

func wantSmallBlocks(value string) string {
	size, ok := parseSize(value)
	return unless(ok && size <= 16<<20, "a size up to 16M")
}

// wantLimit is for quotas, reservations and counts.
func wantLimit(value string) string {
	_, ok := parseSize(value)
	return unless(ok || value == "none", "a size, such as 10G, or none")
}

func wantRefreservation(value string) string {
	if value == "auto" {
		return ""
	}
	return wantLimit(value)
}

func wantIterations(value string) string {
	n, err := strconv.ParseUint(value, 10, 64)
	return unless(err == nil && n >= 100000, "a number of at least 100000")
}

func wantMountpoint(value string) string {
	return unless(strings.HasPrefix(value, "/") || value == "none" || value == "legacy", "an absolute path, none or legacy")
}

func wantKeylocation(value string) string {
	return unless(value == "prompt" || strings.HasPrefix(value, "file:///") || strings.HasPrefix(value, "https://") || strings.HasPrefix(value, "http://"),
		"prompt, or a URL that starts with file:///, https:// or http://")
}

func unless(ok bool, want string) string {
	if ok {
		return ""
	}
	return want
}
