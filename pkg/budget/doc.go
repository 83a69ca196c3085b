// Package budget limits the memory used to decode JSON from another host. In a
// list, "{}," has three bytes but takes hundreds of bytes when decoded.
//
//   - Cost: the estimated memory of a decoded text, in bytes.
//
// Callers check the cost before decoding. The package does not decode.
package budget
