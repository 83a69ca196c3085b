// Package printable makes text from another host or program safe to show.
//
//   - Text: printable characters, line breaks and tabs.
//   - Line: text without line breaks and tabs.
//
// It does not write to a terminal.
package printable
