// The kubernetes provider of Pulumi, as its own release serves it.
//
// The provider's main package embeds a schema that is generated at release time and is not part of the Go module. The
// engine needs that schema only to generate SDKs; a program that brings its SDK needs no more than name and version.
package main

import (
	"fmt"

	"github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/provider"
	"github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/version"
)

const (
	name              = "kubernetes"
	noTerraformSchema = "{}"
)

func main() {
	schema := fmt.Sprintf(`{"name":%q,"version":%q}`, name, version.Version)
	provider.Serve(name, version.Version, []byte(schema), []byte(noTerraformSchema))
}
