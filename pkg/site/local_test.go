package site_test

import (
	"testing"

	"zxfer/pkg/site"
	"zxfer/pkg/site/sitetest"
)

func TestLocalIsASite(t *testing.T) {
	sitetest.Run(t, func(t *testing.T) site.Full { return site.NewLocal("test", func(line string) { t.Log(line) }) })
}
