// Package size parses and formats sizes. It does not limit them: package option does.
//
//   - Size: a number of bytes, or of bytes per second. Its text form is exact.
//   - Text, Rate: rounded forms for people, which cannot be parsed.
package size
