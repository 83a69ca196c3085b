// Package budget limits the memory used to decode JSON from another host. In a
// list, "{}," has three bytes but takes hundreds of bytes when decoded.
//
//   - Cost: the estimated memory of a decoded text, in bytes.
//
// Callers check the cost before decoding. The package does not decode.
package budget

// Approximate costs in bytes.
const (
	Many = 128 // per object or array: a struct or map
	One  = 32  // per comma
)

// Small is the cost in bytes that any text may have: logs, errors, facts.
const Small = 1 << 20

// Of returns the cost of a JSON text: its length and the estimated size of its
// values.
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
					i++ // the escaped character
				}
			}
		}
	}
	return cost
}

// Within returns the maximum cost allowed for a text of n bytes, if no text may
// exceed most. It is a small multiple of n, which only padding exceeds.
func Within(most, n int) int { return min(most, Small+10*n) }
