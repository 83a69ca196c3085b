// Package budget estimates the memory that JSON of another host takes once it is decoded:
// "{}" is three bytes of a list, and hundreds of memory. Callers refuse a text before they
// decode it. The package decodes nothing.
package budget

// Costs in bytes of memory. They are approximate.
const (
	Many = 128 // of an object or array: a structure, a map
	One  = 32  // of whatever follows a comma
)

// Small is the cost in bytes that any text may have: logs, errors, facts.
const Small = 1 << 20

// Of returns the cost of a JSON text: its bytes, and what they become.
func Of(text []byte) int {
	cost := len(text)
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '{', '[':
			cost += Many
		case ',':
			cost += One
		case '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++ // what is escaped
				}
			}
		}
	}
	return cost
}

// Within returns the highest cost of a text of n bytes if no text may cost more than most.
// It is a small factor of n, which only padding exceeds.
func Within(most, n int) int { return min(most, Small+10*n) }
