// Package size parses and formats sizes.
//
//   - Size: a number of bytes, or of bytes per second. Its text form is exact.
//   - Text, Rate: rounded forms for people, which cannot be parsed.
package size
