"""Downloads: what comes from the hub or from a web address, checked, once, into caches shared by runs."""
