// Package fault adds a class and a hint to errors.
//
// Nouns:
//   - class: the kind of an error, which is the exit code of a command
//   - hint: the remedy, shown after the error message
//
// It does not print or exit; cmd/zxfer does both.
package fault
