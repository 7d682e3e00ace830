module vk-sandbox/e2e/reference

go 1.22
