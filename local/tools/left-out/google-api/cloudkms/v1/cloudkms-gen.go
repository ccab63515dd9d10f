package cloudkms

const CloudkmsScope = "https://www.googleapis.com/auth/cloudkms"
