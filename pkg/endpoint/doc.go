// Package endpoint parses the two ends of a transfer as users type them.
//
//   - Endpoint: "[user@]host:NAME", or "NAME" for the local host.
//   - Path: a NAME that starts with "/", or on the local host with "./" or "../".
//     It names a device, an image file or a mounted directory.
//   - Dataset: any other NAME.
//
// It does not check whether hosts and names exist.
package endpoint
