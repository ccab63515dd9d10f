module gocloud.dev/secrets/hashivault

go 1.26
