package zfsmem

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transfer/transfertest"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/cli"
	"zxfer/pkg/zfs/zfstest"
)

// OpenSend starts a stream.
func (h *Host) OpenSend(ctx context.Context, s zfs.SendSpec) (cli.Stream, error) {
	if _, err := zfs.SendArgs(s); err != nil {
		return nil, err
	}
	all, err := query(ctx, h, zfs.OpSend, namesOf(s), func() ([]stream, error) { return h.streams(s) })
	if err != nil {
		return nil, err
	}
	src := &sendSource{transfertest.NewSource(encode(all)), "zfs send " + s.Dataset + "@" + s.To}
	context.AfterFunc(ctx, func() { _ = src.Close() })
	return src, nil
}

// namesOf returns the last snapshot of a stream and its incremental source.
func namesOf(s zfs.SendSpec) []string {
	names := []string{s.Dataset + "@" + s.To}
	switch {
	case strings.Contains(s.From, "/"):
		names = append(names, s.From)
	case s.From != "":
		names = append(names, s.Dataset+s.From)
	}
	return names
}

type sendSource struct {
	*transfertest.Source
	name string
}

func (s *sendSource) Name() string { return s.name }

func (s *sendSource) Cause(err error) error { return err }

// stream is the stream of one snapshot.
type stream struct {
	name     string // full name of the snapshot
	typ      zfs.Type
	to, from uint64
	clone    bool
	raw      bool
	resumed  bool
	writes   []write
}

// streams returns the streams that zfs send would write.
func (h *Host) streams(s zfs.SendSpec) ([]stream, error) {
	missing := fail(zfs.NotFound, zfs.OpSend, s.Dataset+"@"+s.To)
	d := h.datasets[s.Dataset]
	if d == nil {
		return nil, missing
	}
	if s.Token != "" {
		t, err := zfs.ParseToken(s.Token)
		if err != nil {
			return nil, err
		}
		v, ok := d.SnapshotOf(t.ToGUID)
		if !ok {
			return nil, fail(zfs.BadToken, zfs.OpSend, t.ToName)
		}
		one := h.stream(d, v, t.FromGUID, s.Flags.Raw)
		one.writes, one.resumed = one.writes[t.Bytes:], true
		return []stream{one}, nil
	}
	from := uint64(0)
	if names := namesOf(s); len(names) > 1 {
		in, i := h.find(names[1])
		if i < 0 {
			return nil, missing
		}
		from = in.Versions[i].GUID
	}
	have := map[string]zfs.Version{}
	for _, v := range d.Versions {
		have[v.Short()] = v
	}
	var all []stream
	for _, name := range append(append([]string(nil), s.Through...), s.To) {
		v, ok := have["@"+name]
		if !ok {
			return nil, missing
		}
		one := h.stream(d, v, from, s.Flags.Raw)
		one.clone = len(all) == 0 && strings.Contains(s.From, "/")
		all, from = append(all, one), one.to
	}
	return all, nil
}

func (h *Host) stream(d *zfs.Dataset, v zfs.Version, from uint64, raw bool) stream {
	return stream{name: v.In(d.Name), typ: d.Type, to: v.GUID, from: from, raw: raw && d.Encrypted(),
		writes: h.content[v.GUID][len(h.content[from]):]}
}

// encode encodes streams, as a package if there are several.
func encode(all []stream) []byte {
	var out []zfstest.Stream
	for _, s := range all {
		made := zfstest.New(s.name, s.to, s.from, s.typ == zfs.Volume)
		begin := made.Begin(0)
		if s.clone {
			begin.SetClone(s.from)
		}
		if s.raw {
			begin.AddFeatures(zfstest.FeatureRaw)
		}
		if s.resumed {
			begin.AddFeatures(zfstest.FeatureResuming)
		}
		for _, w := range s.writes {
			made = made.Written(w.at, w.data)
		}
		out = append(out, made)
	}
	if len(out) == 1 {
		return out[0].Bytes()
	}
	return zfstest.Package(all[len(all)-1].name, nil, 0, out...).Bytes()
}

// partial is partially received state.
type partial struct {
	of     stream // has the name on the source
	writes []write
}

// OpenReceive starts to receive a stream, which a zfs.Gate checks.
func (h *Host) OpenReceive(ctx context.Context, r zfs.ReceiveSpec) (transfer.Sink, error) {
	if _, err := zfs.ReceiveArgs(r); err != nil {
		return nil, err
	}
	gate, err := zfs.NewGate(r)
	if err != nil {
		return nil, err
	}
	if err := h.do(ctx, zfs.OpReceive, []string{r.Target}, func() error { return nil }); err != nil {
		return nil, err
	}
	pr, pw := io.Pipe()
	s := &receiveSink{host: h, spec: r, gate: gate, in: pw, done: make(chan struct{})}
	stop := context.AfterFunc(ctx, func() { _ = pw.CloseWithError(context.Cause(ctx)) })
	go func() {
		defer stop()
		s.err = s.read(ctx, pr)
		why := s.err
		if why == nil {
			why = io.ErrClosedPipe
		}
		_ = pr.CloseWithError(why)
		close(s.done)
	}()
	return s, nil
}

// receiveSink is a running zfs receive.
type receiveSink struct {
	host *Host
	spec zfs.ReceiveSpec
	gate *zfs.Gate
	in   *io.PipeWriter
	done chan struct{}
	err  error // valid after done
}

// Name returns "zfs receive DATASET".
func (s *receiveSink) Name() string { return "zfs receive " + s.spec.Target }

// Withhold returns zfs.TailSize.
func (s *receiveSink) Withhold() int { return zfs.TailSize }

// Write checks and stores bytes of the stream.
func (s *receiveSink) Write(b []byte) (int, error) {
	if err := s.gate.Check(b); err != nil {
		return 0, &zfs.Error{Kind: zfs.Unplanned, Op: zfs.OpReceive, Subject: s.spec.Target, Detail: "the stream is not what was planned: " + err.Error()}
	}
	return s.in.Write(b)
}

// Commit ends the stream.
func (s *receiveSink) Commit(context.Context) error {
	_ = s.in.Close()
	<-s.done
	return s.err
}

// Abort ends the stream early and keeps the partially received state.
func (s *receiveSink) Abort(cause error) error {
	_ = s.in.Close()
	<-s.done
	if s.err == nil {
		return errors.New(s.Name() + ": the stream was given up, but it was whole and is stored")
	}
	if errors.Is(s.err, &zfs.Error{Kind: zfs.Incomplete}) || cause != nil && errors.Is(s.err, cause) {
		return nil
	}
	return s.err
}

func (s *receiveSink) fail(kind zfs.Kind) error { return fail(kind, zfs.OpReceive, s.spec.Target) }

// read stores the stream.
func (s *receiveSink) read(ctx context.Context, in io.Reader) error {
	r := zfs.NewStreamReader(in)
	var at *partial
	clean := true // at the end of a stream
	for {
		rec, err := r.Next()
		if err == io.EOF && clean {
			return nil
		}
		if err != nil {
			s.save(at)
			return errors.Join(s.fail(zfs.Incomplete), unlessEOF(err))
		}
		clean = false
		switch {
		case rec.Type == zfs.RecordBegin && rec.ToGUID() == 0: // a package's head
		case rec.Type == zfs.RecordBegin:
			if at, err = s.begin(rec); err != nil {
				return err
			}
		case rec.Type == zfs.RecordWrite && at != nil:
			data, err := r.Payload()
			if err != nil {
				s.save(at)
				return errors.Join(s.fail(zfs.Incomplete), unlessEOF(err))
			}
			at.writes = append(at.writes, write{rec.Offset(), bytes.Clone(data)})
			if s.full(at) {
				s.save(at)
				return s.fail(zfs.NoSpace)
			}
		case rec.Type == zfs.RecordEnd && at != nil:
			if err := s.end(ctx, at); err != nil {
				s.save(at)
				return err
			}
			at, clean = nil, true
		case rec.Type == zfs.RecordEnd:
			clean = true
		}
	}
}

// unlessEOF returns the error of an input, nil for its end.
func unlessEOF(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}
