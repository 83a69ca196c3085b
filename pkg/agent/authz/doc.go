// Package authz decides what a restricted agent may do. Its nouns:
//
//   - Policy: what a key may do, as its agent's flags say.
//   - grant: a verb and a dataset that it applies to, with all descendants.
//   - Guard: applies a Policy to the requests of one session.
//   - rule: the check of one operation's arguments.
//   - account: the text by which the audit shows what a request changes.
//   - audit: the log of refusals, admitted changes and their failures.
//
// A Guard checks each request before the operation runs. It refuses unknown operations and
// unknown fields, so that new features are refused until they have a rule. The operation gets
// exactly the arguments that were checked.
//
// The package does not authenticate clients; the remote shell does. It does not limit the space
// that an admitted receive uses; a quota does.
package authz
