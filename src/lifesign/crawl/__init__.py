"""The crawl application: prober, directories and storage in one or several processes."""
