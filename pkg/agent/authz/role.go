package authz

import (
	"context"
	"fmt"

	"zxfer/pkg/zfs"
)

// checkRole refuses to change a copy that became the source in a fail over. It asks the host, so
// the request cannot claim another role.
func (g *Guard) checkRole(ctx context.Context, dataset string) error {
	var names []string
	for name := dataset; name != ""; name = zfs.ParentOf(name) {
		names = append(names, name)
	}
	have, err := g.host.Properties(ctx, names, []string{zfs.RoleProperty})
	if err != nil {
		return err
	}
	at, role, err := zfs.RoleOf(dataset, func(name string) map[string]zfs.Property { return have[name] })
	if err == nil && !role.Receives() {
		err = fmt.Errorf("%s became the source %s: it must not be changed", at, role.Describe())
	}
	return err
}
