"""Indexes written in the forms that crawlers read by themselves."""
