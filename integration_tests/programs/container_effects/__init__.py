"""Programs that change containers: what each type can do, and where containers are kept."""
