module tools/helm-docs

go 1.26

require github.com/norwoodj/helm-docs v1.14.2 // indirect
