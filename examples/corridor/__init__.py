"""Parts of one's own in one small package: what trainer's keys name by import path. See README.md beside this file."""
