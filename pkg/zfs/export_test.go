package zfs

import "testing"

// Sampled exports sampled to tests of package zfs_test.
func Sampled(t testing.TB, name string) []byte { return sampled(t, name) }

// Expected exports plannedReceive to tests of package zfs_test.
func Expected(t testing.TB, b []byte) ReceiveSpec { return plannedReceive(t, b) }

// Pass exports pass to tests of package zfs_test.
func Pass(t testing.TB, r ReceiveSpec, b []byte, size int) (int, error) { return pass(t, r, b, size) }
