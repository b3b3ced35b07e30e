module wisp.test/fake-runtime

go 1.24
