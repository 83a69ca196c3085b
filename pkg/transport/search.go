package transport

// PathSearch is how it went to find a way between two hosts that passes. The zero Search was
// not looked for.
type PathSearch struct {
	Path       string   // that is taken: "from alpha to beta", "through ssh"
	Rejected   []string // those that were tried before, and why they do not pass
	Unroutable bool     // the first of them for want of an address
	NoPath     bool     // none passes
	OverSSH    bool     // it is ssh's own connection
	Listen     string   // the host that is connected to by the way that is tried first
	Option     string   // that has this way taken at once
	Untried    []string // what to ask for instead, where another way was asked for
}
