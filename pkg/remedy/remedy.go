// Package remedy writes the commands of hints for the host on which they act.
//
// Nouns:
//   - Host: a host, and the remote shell that reaches it
//   - mark: two control characters around a command in a hint that another host may send. The
//     host that prints the hint replaces them, so that the command acts on the host it came from
//
// A command of another host is one quoted argument of the remote shell. Pasted, no part of it
// runs on the host that prints it, even if the other host lies.
package remedy

import "strings"

// Host is a host as hints name it. The zero Host is the local host.
type Host struct {
	Name  string // as ssh takes it, possibly with "user@"; "" for the local host
	Shell string // remote shell command; "" = ssh
}

// AsRoot returns the host with the account root.
func (h Host) AsRoot() Host {
	if h.Name != "" {
		h.Name = "root@" + h.Name[strings.LastIndexByte(h.Name, '@')+1:]
	}
	return h
}

// Prompt is Command for a command that reads a passphrase from the terminal.
func (h Host) Prompt(argv ...string) string { return h.PromptLine(Command(argv...)) }

// PromptLine is Line for a line that reads a passphrase from the terminal.
func (h Host) PromptLine(line string) string { return h.line(" -t", line) }

// Command returns the command line that runs argv on the host.
func (h Host) Command(argv ...string) string { return h.Line(Command(argv...)) }

// Line returns the command line that runs a line of shell on the host.
func (h Host) Line(line string) string { return h.line("", line) }

func (h Host) line(flag, line string) string {
	if h.Name == "" {
		return line
	}
	shell := h.Shell
	if shell == "" {
		shell = "ssh"
	}
	return shell + flag + " " + Word(h.Name) + " " + unambiguous(line)
}

// unambiguous returns a line as arguments of the remote shell, which joins them with blanks and gives
// the result to the shell of the other host.
func unambiguous(line string) string {
	for _, w := range strings.Split(line, " ") {
		if !plain(w) {
			return quote(line)
		}
	}
	return line
}

// Command quotes argv for a POSIX shell.
func Command(argv ...string) string {
	quoted := make([]string, len(argv))
	for i, a := range argv {
		quoted[i] = Word(a)
	}
	return strings.Join(quoted, " ")
}

// Word quotes a word for a POSIX shell.
func Word(s string) string {
	if plain(s) {
		return s
	}
	return quote(s)
}

// plain reports whether no shell changes a word.
func plain(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && strings.IndexByte("-_.:/@%+=,", c) < 0 {
			return false
		}
	}
	return s != ""
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

const (
	start  = "\x01"
	prompt = "\x02" // starts a command that reads a passphrase
	end    = "\x03"
	root   = "\x04" // starts a command that only root may run
)

// Mark marks a line of shell that acts on the host where the hint is written.
func Mark(line string) string { return start + line + end }

// MarkPrompt is Mark for a command that reads a passphrase from the terminal.
func MarkPrompt(line string) string { return prompt + line + end }

// MarkRoot is Mark for a command that only root may run.
func MarkRoot(line string) string { return root + line + end }

// Marked reports whether a hint has marks.
func Marked(hint string) bool { return strings.ContainsAny(hint, start+prompt+root) }

// Here removes the marks of a hint of this host.
func Here(hint string) string {
	return strings.NewReplacer(start, "", prompt, "", end, "", root, "").Replace(hint)
}

// On writes a hint that came from the host. Each line starts with the host's name, or is only a
// command.
func (h Host) On(hint string) string {
	if h.Name == "" {
		return Here(hint)
	}
	var out []string
	for line := range strings.Lines(hint) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		text := h.Commands(line)
		if strings.IndexAny(line, start+prompt+root) != 0 || strings.Index(line, end) != len(line)-len(end) {
			text = h.Name + ": " + text
		}
		out = append(out, text)
	}
	return strings.Join(out, "\n")
}

// Commands writes the marked commands of a text of this host for the host h.
func (h Host) Commands(line string) string {
	var b strings.Builder
	for {
		at := strings.IndexAny(line, start+prompt+root)
		if at < 0 {
			break
		}
		command, rest, ok := strings.Cut(line[at+1:], end)
		if !ok {
			break
		}
		on, flag := h, ""
		switch line[at : at+1] {
		case prompt:
			flag = " -t"
		case root:
			on = h.AsRoot()
		}
		b.WriteString(Here(line[:at]) + on.line(flag, Here(command)))
		line = rest
	}
	return b.String() + Here(line)
}
