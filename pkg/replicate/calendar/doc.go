// Package calendar parses the calendar events of systemd.time(7), and other times of a job file.
//
//   - An event is a set of times, such as "Mon..Fri 06:30".
//   - A duration is a time span of the job file, such as "7d", and a grace one that may be "keep". A zone is a time zone.
//   - A part of a time is one of its numbers, such as the hour or the day of the week.
//
// It computes the next time of an event, for status, and a crontab(5) line, for hosts without
// systemd. It neither schedules jobs nor supports fractions of a second.
package calendar
