package gen

import (
	"encoding/json"
	"log"

	"github.com/pulumi/pulumi/pkg/v3/codegen/schema"
)

func WithParameterization(*schema.ParameterizationSpec) any { return nil }

func PulumiSchema(map[string]any, ...any) schema.PackageSpec {
	log.Fatal("this provider was built without types of custom resources")
	return schema.PackageSpec{}
}

func rawMessage(v any) schema.RawMessage {
	bytes, err := json.Marshal(v)
	if err != nil {
		log.Fatal(err)
	}
	return bytes
}
