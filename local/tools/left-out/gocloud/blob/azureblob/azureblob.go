package azureblob

import (
	"context"
	"errors"
	"net/url"

	"gocloud.dev/blob"
)

const Scheme = "azblob"

type ServiceURLOptions struct{}

type URLOpener struct {
	MakeClient        any
	ServiceURLOptions ServiceURLOptions
}

func NewDefaultClient() {}

func NewDefaultServiceURLOptions() *ServiceURLOptions { return &ServiceURLOptions{} }

func (*URLOpener) OpenBucketURL(context.Context, *url.URL) (*blob.Bucket, error) {
	return nil, errors.New("this pulumi was built without Azure's clouds")
}
