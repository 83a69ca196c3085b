package ends

import "context"

// Watcher receives the events of any job. Its methods may be called concurrently.
type Watcher interface {
	// Log receives a message for the user.
	Log(message string)
	// Activity is called when a longer operation other than a stream starts, such as "listing
	// tank". The caller calls done when it ends.
	Activity(title string) (done func())
}

func WithActivity(ctx context.Context, rep Watcher, title string, f func(context.Context) error) error {
	defer rep.Activity(title)()
	return f(ctx)
}
