package hosts

import "errors"

// ErrLost is returned by a Site on another host when the connection to it
// broke: what was running there ends by itself.
var ErrLost = errors.New("connection to the host was lost")

// ErrForbidden is in the refusals of an agent that is restricted to less than it was
// asked for.
var ErrForbidden = errors.New("the agent's policy forbids it")
