module contestant

go 1.19
