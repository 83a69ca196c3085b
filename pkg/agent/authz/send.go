package authz

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"zxfer/pkg/files"
	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
)

// Estimate judges streams that might leave.
func Estimate(ctx context.Context, g *Guard, streams *[]zfs.SendSpec) error {
	tokens := 0
	for _, s := range *streams {
		if s.Token != "" {
			tokens++
		}
	}
	if tokens > maxTokens {
		return fmt.Errorf("%d resume tokens at once, at most %d are allowed", tokens, maxTokens)
	}
	return g.send(ctx, *streams...)
}

// maxTokens bounds the resume tokens of one request: to judge one takes a look
// at its dataset, by a process.
const maxTokens = 1000

// send judges streams that leave.
func (g *Guard) send(ctx context.Context, streams ...zfs.SendSpec) error {
	var plain []string
	for i := range streams {
		name, err := g.stream(ctx, &streams[i], g.policy.Send)
		if err != nil {
			return err
		}
		plain = append(plain, name)
	}
	return g.sealed(ctx, plain, "only a raw stream of it may leave", nil)
}

// Digest judges what hashes a stream instead of sending it: what was received
// is verified this way, too. A digest of plain text tells who has a guess
// whether it is right. But what came in as plain text, and was encrypted with
// a key of this host, is known to who sent it: its key is that of a dataset above it,
// which nobody sent.
func Digest(ctx context.Context, g *Guard, q *hosts.ContentQuery) error {
	if q.KeyFile != "" {
		return errKeyFile
	}
	plain, err := g.stream(ctx, &q.SendSpec, slices.Concat(g.all(), g.policy.Drilled))
	if err != nil {
		return err
	}
	return g.sealed(ctx, []string{plain}, "only the digest of a raw stream of it may be known", func(root string) bool {
		if !below(plain, g.policy.Receive) || below(plain, g.policy.Send) || root == plain || !below(plain, []string{root}) {
			return false
		}
		// A tree that came in raw has one root, too, and that has the mark of it.
		have, err := g.site.Properties(ctx, []string{root}, []string{zfs.FlagsProperty})
		return err == nil && !have[root][zfs.FlagsProperty].Local()
	})
}

// ReadFiles judges what reads files of what may be sent, as plain text.
func ReadFiles(ctx context.Context, g *Guard, q *files.Query) error {
	return g.files(ctx, q.Snapshot, q.KeyFile)
}

var errKeyFile = errors.New("which file has a key of ZFS is not for who has this one to say")

// files judges whose files may be read: those of snapshots. What the dataset itself
// has now was not sent yet. Which file has a key is not for others to say.
func (g *Guard) files(ctx context.Context, snapshot, keyFile string) error {
	if keyFile != "" {
		return errKeyFile
	}
	dataset, err := g.origin(ctx, snapshot)
	if err != nil {
		return err
	}
	if dataset == "" {
		if err := g.snapshots([]string{snapshot}, g.policy.Send, "read"); err != nil {
			return err
		}
		if dataset, _, err = zfs.ParseSnapshot(snapshot); err != nil {
			return err
		}
	}
	return g.sealed(ctx, []string{dataset}, "its files are not for this key", nil)
}

// stream judges the names in a stream and returns the dataset whose content it
// would show as plain text, were it encrypted; "" where the stream is raw.
func (g *Guard) stream(ctx context.Context, s *zfs.SendSpec, roots []string) (plain string, err error) {
	if !below(s.Dataset, roots) {
		return "", outside(s.Dataset)
	}
	if s.Token != "" {
		return g.token(ctx, s, roots)
	}
	for _, name := range append([]string{s.To}, s.Through...) {
		if err := zfs.CheckComponent(name); err != nil {
			return "", err
		}
	}
	switch {
	case s.From == "":
	case s.From[0] == '@', s.From[0] == '#':
		err = zfs.CheckComponent(s.From[1:])
	default:
		err = g.snapshots([]string{s.From}, roots, "base")
	}
	if s.Flags.Raw {
		return "", err
	}
	return s.Dataset, err
}

// sealed refuses plain text of encrypted datasets that are not granted so. This
// host is asked what is encrypted, never the request; what it does not know is
// taken for encrypted. known tells by its encryption root whether the content of
// such a dataset is no secret; it may be nil. "" among the names is passed over.
func (g *Guard) sealed(ctx context.Context, plain []string, may string, known func(root string) bool) error {
	ask := map[string]bool{}
	for _, name := range plain {
		if name != "" && !below(name, g.policy.Decrypted) {
			ask[name] = true
		}
	}
	if len(ask) == 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(ask))
	have, err := g.site.Properties(ctx, names, []string{"encryption", "encryptionroot"})
	if err != nil {
		return err
	}
	for _, name := range names {
		p := have[name]
		switch root := p["encryptionroot"].Value; {
		case p == nil:
			return fmt.Errorf("%s does not exist", name)
		case p["encryption"].Value == "off", known != nil && known(root):
		default:
			return fmt.Errorf("%s is encrypted: %s; --allow send-decrypted=%s in authorized_keys allows plain text", name, may, name)
		}
	}
	return nil
}

// token judges a resume token, which anybody can make up: its checksum has no
// key. Its names are hints only. zfs send looks for the GUIDs, first in the
// named dataset and then in everything above it, up to the whole pool; so both
// must be of versions that the named dataset has.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/lib/libzfs/libzfs_iter.c (guid_to_name_redact_snaps)
func (g *Guard) token(ctx context.Context, s *zfs.SendSpec, roots []string) (plain string, err error) {
	t, err := zfs.ParseToken(s.Token)
	if err != nil {
		return "", err
	}
	dataset, _, err := zfs.ParseSnapshot(t.ToName)
	if err != nil {
		return "", fmt.Errorf("resume token: %w", err)
	}
	if !below(dataset, roots) {
		return "", outside(t.ToName)
	}
	if t.Saved || t.Redacted {
		return "", errors.New("resume token of a partial or redacted stream: zxfer makes none")
	}
	l, err := g.site.List(ctx, hosts.ListQuery{Dataset: dataset, Versions: true})
	if err != nil {
		return "", err
	}
	d := l.Find(dataset)
	if !t.Flags.Raw { // what the token says, not the request, is what ZFS goes by
		plain = dataset
	}
	has := func(guid uint64, kinds ...zfs.VersionKind) bool {
		return d != nil && slices.ContainsFunc(d.Versions, func(v zfs.Version) bool {
			return v.GUID == guid && slices.Contains(kinds, v.Kind)
		})
	}
	if !has(t.ToGUID, zfs.Snapshot) {
		return "", fmt.Errorf("resume token: %s has no snapshot of the GUID that it names", dataset)
	}
	if t.FromGUID == 0 || has(t.FromGUID, zfs.Snapshot, zfs.Bookmark) {
		return plain, nil
	}
	// A clone begins at a snapshot of another dataset.
	origin := d.Get("origin")
	if of, _, err := zfs.ParseSnapshot(origin); err == nil && below(of, roots) {
		m, err := g.site.Properties(ctx, []string{origin}, []string{"guid"})
		if err != nil {
			return "", err
		}
		if m[origin]["guid"].Value == fmt.Sprint(t.FromGUID) {
			return plain, nil
		}
	}
	return "", fmt.Errorf("resume token: %s has no version of the GUID that it names as its base", dataset)
}
