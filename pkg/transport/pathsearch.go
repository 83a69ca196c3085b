package transport

// PathSearch is the result of the search for a path between two hosts. It is zero if no search
// was necessary.
type PathSearch struct {
	Path       string   // the chosen path: "from alpha to beta", "through ssh"
	Rejected   []string // the paths that failed, with the reasons
	Unroutable bool     // the first rejected path has no usable address
	NoPath     bool     // all paths failed
	OverSSH    bool     // the path is the ssh connection
	Listen     string   // the listening host of the first path
	Option     string   // the option that selects this path directly
	Untried    []string // alternatives that the user's options excluded
}
