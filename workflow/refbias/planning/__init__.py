"""What a run will cost: GPU-hours, disk and download from its configuration, before anything is started."""
