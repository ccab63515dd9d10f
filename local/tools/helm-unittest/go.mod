module tools/helm-unittest

go 1.26

require github.com/helm-unittest/helm-unittest v0.7.2 // indirect
