"""The pages of `dashboard`: what `status`, `runs` and `compare` print, in a browser and kept up to date."""
