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

// mayEstimate permits estimating streams that may be sent.
func mayEstimate(ctx context.Context, g *Guard, streams *[]zfs.SendSpec) error {
	tokens := 0
	for _, s := range *streams {
		if s.Token != "" {
			tokens++
		}
	}
	if tokens > maxTokens {
		return fmt.Errorf("%d resume tokens, more than %d", tokens, maxTokens)
	}
	return g.checkSend(ctx, *streams...)
}

// maxTokens limits the resume tokens of one request. Checking a token runs a process that lists
// its dataset.
const maxTokens = 1000

// checkSend checks streams that are to be sent.
func (g *Guard) checkSend(ctx context.Context, streams ...zfs.SendSpec) error {
	var plain []string
	for i := range streams {
		name, err := g.checkStream(ctx, &streams[i], g.policy.Send)
		if err != nil {
			return addGrants(err, []string{"send"})
		}
		plain = append(plain, name)
	}
	return g.checkPlaintext(ctx, plain, "only raw streams of it are permitted", nil)
}

// mayDigest permits hashing streams instead of sending them, also to verify received data. A
// digest of plain text confirms guesses, so encrypted content needs a raw stream. One
// exception: plain text received into a dataset that inherits this host's key is known to the
// sender already.
func mayDigest(ctx context.Context, g *Guard, q *hosts.ContentQuery) error {
	if q.KeyFile != "" {
		return errKeyFile
	}
	plain, err := g.checkStream(ctx, &q.SendSpec, slices.Concat(g.sendOrReceive(), g.policy.Drilled))
	if err != nil {
		return err
	}
	return g.checkPlaintext(ctx, []string{plain}, "only digests of raw streams of it are permitted", func(root string) bool {
		if !within(plain, g.policy.Receive) || within(plain, g.policy.Send) || root == plain || !within(plain, []string{root}) {
			return false
		}
		// A tree received raw has one root too, but that records its flags.
		have, err := g.host.Properties(ctx, []string{root}, []string{zfs.FlagsProperty})
		return err == nil && !have[root][zfs.FlagsProperty].Local()
	})
}

// mayReadFiles permits reading files of datasets that may be sent, as plain text.
func mayReadFiles(ctx context.Context, g *Guard, q *files.Query) error {
	return g.checkFiles(ctx, q.Snapshot, q.KeyFile)
}

// mayBlockSizes permits reading inode numbers, sizes and block sizes of snapshots that may be sent or
// drilled. It mounts them, so it does not permit that for copies that may only be received: the client
// made their file system structures. It permits names as mayReadFiles does.
func mayBlockSizes(ctx context.Context, g *Guard, q *files.BlockQuery) error {
	if len(q.Inodes) > 0 {
		return g.checkFiles(ctx, q.Snapshot, "")
	}
	return g.checkSnapshots([]string{q.Snapshot}, slices.Concat(g.policy.Send, g.policy.Drilled), "read")
}

// checkFiles checks the snapshot whose files are read. The live dataset is not granted, because
// its data was not sent yet. The client must not choose a key file.
func (g *Guard) checkFiles(ctx context.Context, snapshot, keyFile string) error {
	if keyFile != "" {
		return errKeyFile
	}
	dataset, err := g.drillOrigin(ctx, snapshot)
	if err != nil {
		return err
	}
	if dataset == "" {
		if err := g.checkSnapshots([]string{snapshot}, g.policy.Send, "read"); err != nil {
			return addGrants(err, []string{"send"})
		}
		if dataset, _, err = zfs.ParseSnapshot(snapshot); err != nil {
			return err
		}
	}
	return g.checkPlaintext(ctx, []string{dataset}, "this key does not permit reading its files", nil)
}

var errKeyFile = errors.New("this key does not permit naming a key file")

// checkStream checks the names in a stream. It returns the dataset whose content the stream
// shows as plain text, or "" if the stream is raw.
func (g *Guard) checkStream(ctx context.Context, s *zfs.SendSpec, roots []string) (plain string, err error) {
	if !within(s.Dataset, roots) {
		return "", errOutside(s.Dataset)
	}
	if s.Token != "" {
		return g.checkToken(ctx, s, roots)
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
		err = g.checkSnapshots([]string{s.From}, roots, "base")
	}
	if s.Flags.Raw {
		return "", err
	}
	return s.Dataset, err
}

// checkToken checks a resume token. Anybody can forge one: its checksum has no key. Names in it
// are only hints: zfs send looks for the GUIDs in the named dataset and then in all its
// ancestors up to the pool. So both GUIDs must belong to versions of the named dataset.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/lib/libzfs/libzfs_iter.c (guid_to_name_redact_snaps)
func (g *Guard) checkToken(ctx context.Context, s *zfs.SendSpec, roots []string) (plain string, err error) {
	t, err := zfs.ParseToken(s.Token)
	if err != nil {
		return "", err
	}
	dataset, _, err := zfs.ParseSnapshot(t.ToName)
	if err != nil {
		return "", fmt.Errorf("resume token: %w", err)
	}
	if !within(dataset, roots) {
		return "", errOutside(t.ToName)
	}
	if t.Saved || t.Redacted {
		return "", errors.New("resume token of a partial or redacted stream, which zxfer never creates")
	}
	l, err := g.host.List(ctx, hosts.ListQuery{Dataset: dataset, Versions: true})
	if err != nil {
		return "", err
	}
	d := l.Find(dataset)
	if !t.Flags.Raw { // ZFS obeys the token, not the request
		plain = dataset
	}
	has := func(guid uint64, kinds ...zfs.VersionKind) bool {
		return d != nil && slices.ContainsFunc(d.Versions, func(v zfs.Version) bool {
			return v.GUID == guid && slices.Contains(kinds, v.Kind)
		})
	}
	if !has(t.ToGUID, zfs.Snapshot) {
		return "", fmt.Errorf("resume token: %s has no snapshot with its GUID", dataset)
	}
	if t.FromGUID == 0 || has(t.FromGUID, zfs.Snapshot, zfs.Bookmark) {
		return plain, nil
	}
	// The stream of a clone starts from a snapshot of another dataset.
	origin := d.Get("origin")
	if of, _, err := zfs.ParseSnapshot(origin); err == nil && within(of, roots) {
		m, err := g.host.Properties(ctx, []string{origin}, []string{"guid"})
		if err != nil {
			return "", err
		}
		if m[origin]["guid"].Value == fmt.Sprint(t.FromGUID) {
			return plain, nil
		}
	}
	return "", fmt.Errorf("resume token: %s has no snapshot or bookmark with the GUID of its incremental source", dataset)
}

// checkPlaintext refuses plain text of encrypted datasets without a send-decrypted grant. It
// queries this host, not the request, and treats unknown datasets as encrypted. known, if not
// nil, reports by encryption root whether the content is no secret. It skips "" among the
// names.
func (g *Guard) checkPlaintext(ctx context.Context, plain []string, may string, known func(root string) bool) error {
	ask := map[string]bool{}
	for _, name := range plain {
		if name != "" && !within(name, g.policy.Decrypted) {
			ask[name] = true
		}
	}
	if len(ask) == 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(ask))
	have, err := g.host.Properties(ctx, names, []string{"encryption", "encryptionroot"})
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
			return fmt.Errorf("%s is encrypted: %s; to permit plain text, add --allow send-decrypted=%s in authorized_keys", name, may, name)
		}
	}
	return nil
}
