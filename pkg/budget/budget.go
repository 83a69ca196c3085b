// Package budget limits the memory used to decode JSON from another host. In a
// list, "{}," has three bytes but takes hundreds of bytes when decoded.
//
//   - Cost: the estimated memory of a decoded text, in bytes.
//
// Callers check the cost before decoding. The package does not decode.
package budget

// Approximate costs in bytes.
const (
	ObjectCost = 128 // per object or array: a struct or map
	CommaCost  = 32  // per comma
)

// MinLimit is the cost in bytes that any text may have: logs, errors, facts.
const MinLimit = 1 << 20

// Cost returns the cost of a JSON text: its length and the estimated size of its
// values.
func Cost(text []byte) int {
	cost := len(text)
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '{', '[':
			cost += ObjectCost
		case ',':
			cost += CommaCost
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

// Limit returns the maximum cost allowed for a text of n bytes, if no text may
// exceed most. It is a small multiple of n, which only padding exceeds.
func Limit(most, n int) int { return min(most, MinLimit+10*n) }
