// Package html renders a command's work, or the status of jobs, as one HTML page.
//
// Its nouns:
//
//	page    the input of the template: figures, course, path, tables
//	course  rates, bottlenecks and events over a time axis
//	path    the stages of the data from source to target, drawn as a pipe
//	limit   a bottleneck
//	badge   a colored word for a state
//	figure  a number at the top of the page
//
// A page loads nothing and runs no script, and its policy forbids both, so that text from other
// hosts stays text. It follows the reader's light or dark mode, and prints. Its size is bounded:
// it shows the important part of long lists and says what it omits.
//
// The functions are pure. The caller writes the page.
package html
