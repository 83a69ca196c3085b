package guard

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"zxfer/pkg/freeze"
	"zxfer/pkg/testenv"
)

// TestMain makes this test binary the watchdog if its argument requests it, with the timeout
// GUARD_TEST_PATIENCE. With GUARD_TEST_RUN, it is a run that freezes and waits until it is killed.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == Verb {
		patience := thawTimeout
		if short, err := time.ParseDuration(os.Getenv("GUARD_TEST_PATIENCE")); err == nil {
			patience = short
		}
		if err := serve(os.Stdin, os.Stdout, patience); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if dir := os.Getenv("GUARD_TEST_RUN"); dir != "" {
		_, err := Start(context.Background(), dir+"/notes", request(script(dir, "a")))
		if err != nil {
			panic(err)
		}
		fmt.Println("frozen\nnow")
		time.Sleep(time.Hour)
	}
	os.Exit(m.Run())
}

// script returns an application that logs its calls to a file.
func script(dir, name string) freeze.Spec {
	do := func(what string) []string {
		return []string{"/bin/sh", "-c", `echo "$2 $1 $ZXFER_HOOK $ZXFER_JOB $ZXFER_SNAPSHOT $ZXFER_FREEZE" >>"$0/log"; test ! -e "$0/$1.$2"`, dir, name, what}
	}
	return freeze.Spec{Kind: freeze.Command, Name: name, Freeze: do("freeze"), Thaw: do("thaw"), Timeout: testenv.Timeout()}
}

func request(specs ...freeze.Spec) *freeze.Request {
	q := &freeze.Request{Job: "j", Snapshots: []string{"tank/a@s"}}
	for _, s := range specs {
		q.Applications = append(q.Applications, freeze.Application{Spec: s, Datasets: []string{"tank/a"}, Required: true})
	}
	return q
}
