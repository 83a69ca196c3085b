// Package option defines the options of the command line and of job files.
//
//   - Value: a typed, bounded variable that an option sets.
//   - Name: a placeholder for an option in a text, {{ID}} or {{ID VALUE}}. It is
//     shown as a flag or a key.
//
// It does not parse command lines or files.
package option
